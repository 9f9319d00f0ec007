"""Conditions of a tool: what does not hold is told to the agent, and nothing is changed."""

from __future__ import annotations

from hud.errors import UsageError


def demand(holds: object, sentence: str) -> None:
    """Raise `UsageError` with a sentence unless something holds."""
    if not holds:
        raise UsageError(sentence)
