"""Tokens of sampled turns: columns that store them, and their pictures."""
