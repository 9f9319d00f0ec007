"""Environments under development: an environment that follows its source."""
