"""Run passes: model calls of a program that plays a run, recorded as the run's steps."""
