"""Environments in files and modules: declared names, loading, and manifests."""
