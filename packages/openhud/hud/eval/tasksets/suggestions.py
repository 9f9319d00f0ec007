"""Suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence with near matches of `name`, or the known names."""
    names = list(names)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(repr(match) for match in near)}?"
    if not names:
        return "; there is none."
    if len(names) == 1:
        return f"; there is only {names[0]!r}."
    shown = ", ".join(repr(match) for match in names[:5])
    return f"; there are {shown}{f' and {len(names) - 5} more' if len(names) > 5 else ''}."
