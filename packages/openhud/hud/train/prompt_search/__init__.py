"""Search of a model's system prompt by reflective evolution (GEPA, arXiv 2507.19457)."""
