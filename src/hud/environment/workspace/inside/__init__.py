"""Scripts that run inside a workspace's sandbox: for the system's Python, standard library only.

Nothing here may import from the rest of the package: the sandbox does not see it.
"""
