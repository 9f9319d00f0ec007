"""Scores of a model on held-out tasks during its training, as a training run's state keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True)
class Change:
    """Paired change of a held-out set from its best evaluations to its newest two (`hud.train.monitoring.trends`)."""

    since: int
    """Step of the best evaluation."""
    mean: float
    low: float | None
    """Interval, corrected for the choice of the best; None with too few tasks."""
    high: float | None
    below: int
    """Consecutive newest evaluations below the best, up to 2."""


@dataclass(frozen=True)
class SetScore:
    """Mean reward on one held-out set, with its 95% interval over tasks: None for fewer than two tasks."""

    name: str
    mean: float
    low: float | None
    high: float | None
    runs: int
    failed: int = 0
    change: Change | None = None
    recent: Change | None = None
    """Change over the last evaluations (`trends.STAGNANT`), from the one before them; None with fewer."""


@dataclass(frozen=True)
class Score:
    """Mean reward on tasks that are not trained on, with its 95% interval over tasks: None for fewer than two tasks."""

    step: int
    """Completed optimizer steps."""
    mean: float
    low: float | None
    high: float | None
    runs: int
    failed: int = 0
    """Number of unmeasured runs, excluded from the mean."""
    checkpoint_id: str | None = None
    job_id: str | None = None
    sets: tuple[SetScore, ...] = ()
    """Scores of the single held-out sets; `mean` is over all their runs."""

    def as_dict(self) -> dict[str, Any]:
        """Return the score as plain data."""
        return asdict(self)


SCORE = TypeAdapter(Score)


def scores_of(state: Mapping[str, Any]) -> list[Score]:
    """Return the scores in a training run's state. Any client may post entries: invalid ones are ignored."""
    rows = state.get("scores")
    scores = []
    for row in rows if isinstance(rows, list) else []:
        with suppress(ValidationError):
            scores.append(SCORE.validate_python(row))
    return scores
