"""Result of a run's model calls at its end: steps, the worst refusal, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.trace.sampled.call_samples import MODEL_CALL
from hud_platform.gateway.untrained_answers import AnsweredCall, untrained_answers
from hud_platform.store.run_calls import steps_of_calls, unpacked

LOST = {
    "kind": "infrastructure",
    "status": 503,
    "message": "A model call of this run was lost with the server that served it.",
}
REWRITES = "rewrites"
"""Key of a step's `extra`: number, choice and kind of each rewrite of an earlier answer that its request was the first to have."""
_WORST = ("infrastructure", "length", "limit")
"""Kinds of refusals, worst first."""


def run_result(rows: Sequence[sa.Row[Any]], unrecorded: Mapping[str, str]) -> dict[str, Any]:
    """Return the steps of a run's calls in order, its worst refusal (None without one), and counts.

    `unrecorded`: errors at the arrival of calls, which have no number, by the digest of the request.
    Prompts in samples are differences to those of earlier steps: see `hud.trace.sampled.call_samples`.
    """
    steps = steps_of_calls(rows)
    excluded = untrained_answers(_answered_calls(rows))
    for step in steps:
        call = step.get("extra", {}).get(MODEL_CALL)
        reason = call and excluded.get((call["number"], call["choice"]))
        if reason and step.get("sample"):
            step["sample"]["excluded"] = reason
    overridden = Counter(
        name for step in steps for name in step.get("extra", {}).get("overridden", ())
    )
    # Servers of one store may each have seen one first.
    rewritten = {
        tuple(rewrite) for step in steps for rewrite in step.get("extra", {}).get(REWRITES, ())
    }
    metrics = {
        "calls": len(rows),
        **Counter(row.status for row in rows),
        "overridden": dict(overridden),
        "continued": sum("extends" in (step.get("sample") or ()) for step in steps),
        "excluded": dict(Counter(excluded.values())),
        "rewrites": dict(Counter(kind for _, _, kind in rewritten)),
    }
    return {"steps": steps, "refusal": worst_refusal(rows, unrecorded), "metrics": metrics}


def _answered_calls(rows: Sequence[sa.Row[Any]]) -> list[AnsweredCall]:
    """Return the answered calls whose requests were read."""
    calls = []
    for row in rows:
        steps = unpacked(row.steps)
        call = steps[0]["extra"][MODEL_CALL] if steps else {}
        if call.get("conversation") is None:
            continue
        calls.append(
            AnsweredCall(
                number=row.number,
                choices=len(steps),
                conversation=call["conversation"],
                tools=call["tools"],
                answers=frozenset((number, choice) for number, choice in unpacked(row.continues)),
                started_at=row.started_at,
                ended_at=row.ended_at,
            )
        )
    return calls


def worst_refusal(
    rows: Sequence[sa.Row[Any]], unrecorded: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the worst refusal of a run's calls that its program did not overcome, with `last`: no call was answered after it."""
    answered = {row.digest for row in rows if row.status == "answered"}
    standing: list[dict[str, Any]] = [
        {"kind": "infrastructure", "status": 503, "message": message, "last": True}
        for digest, message in unrecorded.items()
        if digest not in answered
    ]
    for place, row in enumerate(rows):
        later = [other for other in rows[place + 1 :] if other.status == "answered"]
        refusal = LOST if row.status == "open" else None
        if row.refusal is not None:
            refusal = exact_json.loads(row.refusal)
        if refusal is None:
            continue
        # A program goes on without the compaction that it was refused, as with a shorter conversation.
        forwarded = refusal.pop("forwarded", False)
        by_another = forwarded or refusal["kind"] == "length"
        overcome = later if by_another else _same(later, row.digest)
        if not overcome:
            standing.append({**refusal, "last": not later})
    standing.sort(key=lambda refusal: _WORST.index(refusal["kind"]))
    return standing[0] if standing else None


def _same(rows: Iterable[sa.Row[Any]], digest: str) -> list[sa.Row[Any]]:
    return [row for row in rows if row.digest == digest]
