"""Runs as the token sequences that trainers of others take."""

from __future__ import annotations

from collections.abc import Iterator

from hud.eval import Run
from hud.learning.datums import Datum, datums_of, payload_of


def sequences_of(run: Run) -> list[Datum]:
    """Return the token sequences of a run: those of its subagents first, then its own.

    A run has one sequence, and a further one for each turn whose prompt does not extend the turn before.
    """
    return [datum for played in _with_children(run) for datum in own_sequences(played)]


def own_sequences(run: Run) -> list[Datum]:
    """Return the token sequences of a run without its subagents, in order."""
    payload = payload_of(run.trace, run.reward or 0.0)
    return datums_of(payload) if payload is not None else []


def _with_children(run: Run) -> Iterator[Run]:
    for child in run.children:
        yield from _with_children(child)
    yield run
