"""The sandbox of a workspace: namespaces, mounts, limits, and the processes in it."""
