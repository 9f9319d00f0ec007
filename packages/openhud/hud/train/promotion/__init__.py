"""Promotion: candidates of gated training, comparisons of checkpoints, and the question to the gate."""
