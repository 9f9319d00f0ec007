"""Monitoring of a training run: progress, alarms, curves, held-out scores, comparisons."""
