"""Environments: their registry, the queue of builds and the builder, packed builds, and sessions of running environments."""
