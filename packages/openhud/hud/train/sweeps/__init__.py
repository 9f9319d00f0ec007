"""Sweeps: one training with several values of its settings, and a comparison of the results."""
