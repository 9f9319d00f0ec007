"""`ReasoningEffort` from the effort words and token budgets of each dialect."""

from __future__ import annotations

from hud.inference.dialects.fields import Fields
from hud.trace import ReasoningEffort

_WORDS: dict[str, ReasoningEffort] = {
    "none": "none",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_LOW_TOKENS, _MEDIUM_TOKENS = 4096, 16384
"""Budgets of thinking up to which an effort counts as low and as medium."""


def read_effort(fields: Fields, *names: str) -> ReasoningEffort | None:
    """Return the effort that a field names; words of single providers become the nearest of ours."""
    word = fields.text(*names)
    if word is None or word.lower().endswith("unspecified"):
        return None
    effort = _WORDS.get(word.lower())
    if effort is None:
        raise fields.wrong(names[0], f"one of {', '.join(_WORDS)}")
    return effort


def effort_of_budget(tokens: int | None) -> ReasoningEffort | None:
    """Return the effort of a thinking budget; a negative one leaves it to the model."""
    if tokens is None or tokens < 0:
        return None
    if tokens == 0:
        return "none"
    if tokens <= _LOW_TOKENS:
        return "low"
    return "medium" if tokens <= _MEDIUM_TOKENS else "high"
