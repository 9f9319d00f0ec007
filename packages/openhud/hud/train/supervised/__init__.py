"""Supervised training: warm-up on recorded runs and demonstrations."""
