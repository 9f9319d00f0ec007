"""Builds on a worker's machine: archives, installed builds and container images."""
