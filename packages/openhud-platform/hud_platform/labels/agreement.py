"""Agreement of raters on one label, and of raters with graders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import sqlalchemy as sa

from hud.review.rater_agreement import alpha, main_raters, pair_agreement
from hud_platform.labels.labels import Labels
from hud_platform.store import tables
from hud_platform.store.queries import in_parts

MOST_LABELS = 100_000
GRADER = "reward"
"""Name of the grader among the raters: the runs' rewards."""


def agreement(labels: Labels, name: str) -> dict[str, Any]:
    """Return the agreement on a label of runs: `alpha` of all raters, and each pair with `kappa`, `alpha` and `runs`.

    Pairs include each rater with the runs' rewards.
    """
    rows, _ = labels.page("run", name=name, limit=MOST_LABELS)
    by_rater: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["value"] is not None:
            by_rater[row["rater"]][row["subject_id"]] = row["value"]
    people = dict(by_rater)
    rated = {run for ratings in people.values() for run in ratings}
    rewards = _rewards(labels, sorted(rated))
    pairs = [
        pair_agreement(first, second, people)
        for first, second in combinations(main_raters(people), 2)
    ]
    graded = {**people, GRADER: rewards}
    pairs += [pair_agreement(rater, GRADER, graded) for rater in main_raters(people)]
    return {
        "name": name,
        "raters": {rater: len(ratings) for rater, ratings in people.items()},
        "runs": len(rated),
        "alpha": alpha(list(people.values())),
        "pairs": [pair for pair in pairs if pair["runs"]],
    }


def _rewards(labels: Labels, traces: Sequence[str]) -> dict[str, float]:
    runs = tables.runs
    rewards: dict[str, float] = {}
    for some in in_parts(traces):
        query = sa.select(runs.c.trace_id, runs.c.reward).where(
            runs.c.trace_id.in_(some), runs.c.reward.is_not(None)
        )
        rewards |= {row.trace_id: row.reward for row in labels.store.rows(query)}
    return rewards
