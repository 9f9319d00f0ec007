"""The gate: what recorded rewards say about making one checkpoint the head in another's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hud.eval.results.intervals import with_interval
from hud.train.monitoring.scoring import Comparison, compared

FEWEST_TASKS = 8
"""Below this, an interval over tasks is narrower than it should be, and says little."""


@dataclass(frozen=True)
class Verdict:
    """Verdicts on a candidate against the head."""

    name: Literal["better", "worse", "unclear", "unknown"]
    sentence: str
    comparison: Comparison | None = None


def verdict_of(
    model: str,
    head: Mapping[str, Sequence[float]],
    candidate: Mapping[str, Sequence[float]],
) -> Verdict:
    """Judge a candidate by the tasks that both played: rewards by task, of the head and of the candidate."""
    shared = [slug for slug in head if head[slug] and candidate.get(slug)]
    if not shared:
        return Verdict("unknown", "No task is recorded of both; compare them first.")
    found = compared(model, "the head", "it", head, candidate)
    difference = found.difference
    measured = (
        f"{with_interval(difference.mean, difference.low, difference.high, signed=True)} on {found.tasks} "
        f"{'task' if found.tasks == 1 else 'tasks'}"
    )
    if found.tasks < FEWEST_TASKS:
        return Verdict(
            "unclear", f"{measured}: too few tasks to tell; {FEWEST_TASKS} are the least.", found
        )
    if difference.low is not None and difference.low > 0:
        return Verdict("better", f"Better than the head: {measured}.", found)
    if difference.high is not None and difference.high < 0:
        return Verdict("worse", f"Worse than the head: {measured}.", found)
    return Verdict("unclear", f"No difference that these tasks can show: {measured}.", found)
