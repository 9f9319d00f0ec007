"""A verifier in a container of its own: its settings, the artifacts that it is given, and its workspace."""
