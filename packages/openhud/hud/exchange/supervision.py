"""Names under which a recorded conversation keeps what supervised training needs beyond its messages."""

from __future__ import annotations

TOOL_SPECS = "tool_specs"
"""In a run's `extra`: the tools of its prompts, as dumps of `ToolSpec`, where no environment defines them."""
WEIGHT = "weight"
"""In a turn's `extra`, and in an assistant's message: 0 for a turn that is context, and not trained on."""
