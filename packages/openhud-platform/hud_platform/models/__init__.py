"""Models: registry, checkpoint tree, files, loaded policies, promotion gate."""
