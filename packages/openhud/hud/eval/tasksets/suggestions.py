"""Suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence with near matches of `name`, or the known names."""
    known = list(known)
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(repr(match) for match in near)}?"
    if not known:
        return "; there is none."
    shown = ", ".join(repr(match) for match in known[:5])
    return f"; there are {shown}{f' and {len(known) - 5} more' if len(known) > 5 else ''}."
