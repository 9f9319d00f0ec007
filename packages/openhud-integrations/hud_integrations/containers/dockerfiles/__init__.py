"""Dockerfiles that are built without a daemon: their instructions, stages, values and context."""
