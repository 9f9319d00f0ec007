"""Scripts that run inside a workspace's sandbox: for the system's Python, standard library only.

No imports from the rest of the package, which is not mounted in the sandbox.
"""
