"""Benchmarks of this distribution: a folder for each family, which joins by an entry point of the group `hud.benchmarks`."""
