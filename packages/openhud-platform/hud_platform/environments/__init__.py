"""Environments: registry, builds, archives, and running environments."""
