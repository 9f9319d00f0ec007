"""`Reporter`: the interface of a training's progress, for a command's panel or a test. The loop itself never prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

Phase = Literal["examples", "rollouts", "update", "held-out"]


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


class Reporter:
    """Receiver of a training's progress, in order. Subclasses override methods; this class ignores everything."""

    def started(self, run_id: str, first_step: int, steps: int) -> None: ...

    def phase(self, phase: Phase, step: int, total: int) -> None:
        """Start a phase with `total` runs, 0 for none."""

    def run_ended(self, reward: float | None) -> None: ...

    def stepped(self, step: int, metrics: dict[str, float]) -> None: ...

    def scored(self, score: Score) -> None: ...

    def loss_measured(self, step: int, loss: float, runs: int) -> None:
        """Show the loss per token of `runs` held-out runs after so many steps."""

    def note(self, text: str) -> None:
        """Show a sentence."""

    def close(self) -> None:
        """The training has ended, or was stopped."""


def score_key(name: str) -> str:
    """Return the key of a held-out set's score in the log: `sheetbench-50` is `sheetbench50_score`."""
    words = re.sub(r"-(?=[0-9])", "", name.lower())
    return f"{re.sub(r'[^a-z0-9]+', '_', words).strip('_') or 'held_out'}_score"
