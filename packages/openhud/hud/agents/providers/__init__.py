"""Agents by provider: the tool loop with a provider's settings and model."""
