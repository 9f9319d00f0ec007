"""Tinker's API: training and sampling clients of the package `tinker` on this platform's models."""
