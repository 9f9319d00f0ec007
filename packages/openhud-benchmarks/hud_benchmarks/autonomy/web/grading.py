"""Grade of a run: the changes that were asked for, and no others."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from hud.graders import EvaluationResult, SubScore
from hud_benchmarks.autonomy.web.changes import changes


def graded(
    before: sqlite3.Connection,
    expected: sqlite3.Connection,
    after: sqlite3.Connection,
    unjudged: Collection[str],
) -> EvaluationResult:
    """Return the share of the expected changes that were made; 0 where anything else was changed."""
    wanted = changes(before, expected, unjudged)
    made = changes(before, after, unjudged)
    other = made - wanted
    progress = (made & wanted).total() / wanted.total()
    subscores = [SubScore(name="progress", value=progress)]
    if other:
        subscores.append(SubScore(name="damage", value=1.0, weight=-1.0))
    return EvaluationResult(
        reward=0.0 if other else progress,
        content=f"{other.total()} changes were not asked for." if other else None,
        info={
            "asked": wanted.total(),
            "made": (made & wanted).total(),
            "others": [f"{change.table}: {change.what}" for change in other.elements()][:10],
        },
        subscores=subscores,
    )
