"""Calibration of a grader by people's labels: their agreement, and the threshold of the grader's values at which it is largest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import UsageError
from hud.review.rater_agreement import MODEL_RATER, alpha
from hud_platform.labels.agreement import GRADER
from hud_platform.labels.labels import Labels
from hud_platform.store import tables
from hud_platform.store.queries import in_parts

MOST_LABELS = 100_000
FOLDS = 5
FEW = 20
"""Number of labelled runs of the rarer kind below which a threshold is a guess."""


@dataclass(frozen=True)
class AtThreshold:
    """Agreement of people's verdicts with a grader's values cut at a threshold."""

    threshold: float
    """A run is good for the grader if its value is at least this."""
    kappa: float | None
    equal: int
    missed: int
    """Good for people, bad for the grader."""
    wrongly_good: int
    """Bad for people, good for the grader."""


def calibration(labels: Labels, name: str, grader: str = GRADER) -> dict[str, Any]:
    """Return the agreement of a grader with people's mean values of a label of runs, and the suggested threshold.

    `grader`: `reward`, the name of a subscore, or a rater, such as `review:MODEL`. A run is good for people if its mean value is at least
    the middle of the label's range. The threshold has the largest Cohen's kappa; `held_out` is the share of equal verdicts on fifths of
    the runs whose thresholds are of the other four. Raises `UsageError` where no run has both values, or all are good, or none.
    """
    people, models = _ratings(labels, name)
    values = models.get(grader) or _graded(labels, sorted(people), grader)
    shared = sorted(people.keys() & values.keys())
    if not shared:
        raise UsageError(
            f"No run has people's label {name!r} and a value of {grader!r}: hud label lists labels, hud trace RUN shows subscores."
        )
    middle = (min(people.values()) + max(people.values())) / 2
    pairs = [(values[run], people[run] >= middle) for run in shared]
    good = sum(verdict for _, verdict in pairs)
    if good in (0, len(pairs)):
        raise UsageError(
            f"A threshold needs runs of both kinds: all {len(pairs)} labelled runs are {'good' if good else 'bad'}."
        )
    both = [{run: side[run] for run in shared} for side in (people, values)]
    return {
        "name": name,
        "grader": grader,
        "runs": len(pairs),
        "good": good,
        "alpha": alpha(both),
        **asdict(best_threshold(pairs)),
        "held_out": held_out(pairs),
        "few": min(good, len(pairs) - good) < FEW,
    }


def best_threshold(pairs: Sequence[tuple[float, bool]]) -> AtThreshold:
    """Return the threshold with the largest kappa for (grader's value, good for people), in the middle between two values.

    Of equal ones it is the lowest. O(n log n).
    """
    ordered = sorted(pairs)
    good = sum(verdict for _, verdict in ordered)
    missed, wrongly_good = 0, len(ordered) - good
    best = _at(ordered[0][0], missed, wrongly_good, good, len(ordered))
    for place, (value, verdict) in enumerate(ordered[:-1]):
        missed += verdict
        wrongly_good -= not verdict
        following = ordered[place + 1][0]
        if following > value:
            middle = value + (following - value) / 2
            candidate = _at(middle, missed, wrongly_good, good, len(ordered))
            if (candidate.kappa or 0.0) > (best.kappa or 0.0):
                best = candidate
    return best


def held_out(pairs: Sequence[tuple[float, bool]]) -> float | None:
    """Return the share of equal verdicts under thresholds of the other folds; None with fewer runs than folds."""
    if len(pairs) < FOLDS:
        return None
    equal = 0
    for fold in range(FOLDS):
        rest = [pair for place, pair in enumerate(pairs) if place % FOLDS != fold]
        threshold = best_threshold(rest).threshold
        equal += sum((value >= threshold) == verdict for value, verdict in pairs[fold::FOLDS])
    return equal / len(pairs)


def _at(threshold: float, missed: int, wrongly_good: int, good: int, count: int) -> AtThreshold:
    equal = count - missed - wrongly_good
    chosen = good - missed + wrongly_good
    expected = (good * chosen + (count - good) * (count - chosen)) / count**2
    kappa = None if expected == 1 else (equal / count - expected) / (1 - expected)
    return AtThreshold(threshold, kappa, equal, missed, wrongly_good)


def _ratings(labels: Labels, name: str) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return people's mean value of each run, and the values of each rater that is a model."""
    rows, _ = labels.page("run", name=name, limit=MOST_LABELS)
    people: defaultdict[str, list[float]] = defaultdict(list)
    raters: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["value"] is None:
            continue
        if row["rater"].startswith(MODEL_RATER):
            raters[row["rater"]][row["subject_id"]] = row["value"]
        else:
            people[row["subject_id"]].append(row["value"])
    return {run: fmean(values) for run, values in people.items()}, raters


def _graded(labels: Labels, traces: Sequence[str], grader: str) -> dict[str, float]:
    runs = tables.runs
    values: dict[str, float] = {}
    for some in in_parts(traces):
        query = sa.select(runs.c.trace_id, runs.c.reward, runs.c.grade)
        for row in labels.store.rows(query.where(runs.c.trace_id.in_(some))):
            value = row.reward if grader == GRADER else _subscore(row.grade, grader)
            if value is not None:
                values[row.trace_id] = value
    return values


def _subscore(grade: bytes | None, name: str) -> float | None:
    frame: Mapping[str, Any] = {} if grade is None else exact_json.loads(grade) or {}
    for part in frame.get("subscores") or []:
        if isinstance(part, dict) and part.get("name") == name:
            value = part.get("value")
            return float(value) if isinstance(value, int | float) else None
    return None
