"""Steps in the model calls of run passes that the run's process has not recorded: of a run in progress, or of a process that died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.trace.sampled.call_samples import MODEL_CALL, expand_samples
from hud_platform.store import Store, tables


def calls_of_pass(pass_id: str, after: int = 0) -> sa.Select[Any]:
    """Return the query for the calls of a pass with numbers above `after`, in order."""
    calls = tables.run_calls
    query = sa.select(calls).where(calls.c.pass_id == pass_id, calls.c.number > after)
    return query.order_by(calls.c.number)


def unpacked(column: bytes | None) -> list[Any]:
    """Return the list in a column of `run_calls`."""
    values: list[Any] = [] if column is None else exact_json.loads(column)
    return values


def steps_of_calls(rows: Sequence[sa.Row[Any]]) -> list[dict[str, Any]]:
    """Return the steps of the calls of a pass: each one's tool results, then its turns, in the order of arrival.

    Prompts in samples are differences to those of earlier steps: see `hud.trace.sampled.call_samples`.
    """
    steps: list[dict[str, Any]] = []
    answered: set[str] = set()
    for row in rows:
        for result in unpacked(row.results):
            if result["call"]["id"] not in answered:
                answered.add(result["call"]["id"])
                steps.append(result)
        steps += unpacked(row.steps)
    return steps


def unrecorded_steps(
    store: Store, trace_id: str, recorded: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the steps of a run's calls that are not among its recorded ones, numbered after them."""
    passes = tables.run_passes
    of_run = sa.select(passes.c.id).where(passes.c.trace_id == trace_id)
    pass_ids = store.values(of_run.order_by(passes.c.opened_at, passes.c.id))
    if not pass_ids:
        return []
    places = {_place(step) for step in recorded}
    number = max((step["step_id"] for step in recorded), default=0)
    steps = []
    for pass_id in pass_ids:
        for step in expand_samples(steps_of_calls(store.rows(calls_of_pass(pass_id)))):
            if _place(step) not in places:
                number += 1
                steps.append({**step, "step_id": number})
    return steps


def _place(step: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return what a step is recorded by: its call of a model, or the id of its tool call."""
    place = step.get("extra", {}).get(MODEL_CALL)
    if place is not None:
        return place["pass"], place["number"], place["choice"]
    call = step.get("call")
    return None if call is None else (call.get("id"),)
