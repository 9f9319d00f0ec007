"""Environments: registry, builds, archives, and environments that are running."""
