"""Judges of groups: graders that see all runs of a task after they have ended."""
