"""Grading of workbooks: what was asked for, what was changed, and what follows from other inputs."""
