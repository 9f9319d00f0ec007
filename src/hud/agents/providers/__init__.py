"""Agents by provider: the tool loop with settings and a model of one provider."""
