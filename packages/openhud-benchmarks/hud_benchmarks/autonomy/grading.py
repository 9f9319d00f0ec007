"""Grading of a state by what was to be changed in it, and what was not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from hud.graders import EvaluationResult

_NAMED = 5
"""Places of each kind that a grade names."""
_ABSENT = object()


def grade_state(
    before: Mapping[Any, object],
    wanted: Mapping[Any, object],
    left: Mapping[Any, object],
    part: Callable[[Any], Hashable] = lambda place: place,
) -> EvaluationResult:
    """Grade the state `left` of a task that was to turn `before` into `wanted`; places (paths, cells) to contents.

    The reward is the share of the parts to be changed that are done, and 0 where any other place changed. `part` names the
    part of a place; a part is done when all of its places are as wanted. Untouched and destroyed states earn nothing.
    """
    expected, missed = _differing(before, wanted), _differing(wanted, left)
    damaged, still_open = missed - expected, missed & expected
    parts, open_parts = {part(place) for place in expected}, {part(place) for place in still_open}
    sentences = [_named("not to be changed", damaged), _named("not as asked for", still_open)]
    return EvaluationResult(
        reward=0.0 if damaged else 1.0 - len(open_parts) / len(parts),
        content=" ".join(filter(None, sentences)) or None,
        info={
            "asked": len(parts),
            "made": len(parts) - len(open_parts),
            "damaged": len(damaged),
        },
    )


def _differing(first: Mapping[Any, object], other: Mapping[Any, object]) -> set[Any]:
    places = first.keys() | other.keys()
    return {place for place in places if first.get(place, _ABSENT) != other.get(place, _ABSENT)}


def _named(what: str, places: set[Any]) -> str:
    if not places:
        return ""
    shown = ", ".join(sorted(map(str, places))[:_NAMED])
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"{len(places)} {what}: {shown}{more}."
