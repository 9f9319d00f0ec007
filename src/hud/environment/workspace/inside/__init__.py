"""What runs inside a workspace's sandbox: plain scripts for the system's Python, standard library only.

Nothing here may import from the rest of the package: the sandbox does not see it.
"""
