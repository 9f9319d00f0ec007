"""Ports of packages that join a platform: routes of the API, and pages beside it."""
