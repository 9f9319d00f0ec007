"""Snapshots of runs at a step's end, from which another attempt goes on."""
