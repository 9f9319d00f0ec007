"""`Reporter`: the progress of a training, for a command's panel or a test. The loop itself never prints."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

Phase = Literal["rollouts", "update", "held-out"]


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
    """Newest evaluations in a row that lie below the best, up to 2."""


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


@dataclass(frozen=True)
class Score:
    """Mean reward on tasks that are not trained on, with its 95% interval over tasks: None for fewer than two tasks."""

    step: int
    """Optimizer steps that the policy had taken."""
    mean: float
    low: float | None
    high: float | None
    runs: int
    failed: int = 0
    """Runs that were not measured; they are in no mean."""
    checkpoint_id: str | None = None
    job_id: str | None = None
    sets: tuple[SetScore, ...] = ()
    """Scores of the single held-out sets; `mean` is over all their runs."""

    def as_dict(self) -> dict[str, Any]:
        """Return the score as plain data."""
        return asdict(self)


SCORE = TypeAdapter(Score)


def scores_of(state: Mapping[str, Any]) -> list[Score]:
    """Return the scores in a training run's state. Any client may post one: entries that are no scores are left out."""
    given = state.get("scores")
    found = []
    for one in given if isinstance(given, list) else []:
        with suppress(ValidationError):
            found.append(SCORE.validate_python(one))
    return found


class Reporter:
    """Receives the progress of a training, in order. A subclass shows what it overrides; this one shows nothing."""

    def started(self, run_id: str, first_step: int, steps: int) -> None: ...

    def phase(self, phase: Phase, step: int, total: int) -> None:
        """A phase begins; `total` runs are to be played in it, 0 where none are."""

    def run_ended(self, reward: float | None) -> None: ...

    def stepped(self, step: int, metrics: dict[str, float]) -> None: ...

    def scored(self, score: Score) -> None: ...

    def note(self, text: str) -> None:
        """One sentence that a person should read."""

    def close(self) -> None:
        """The training has ended, or was stopped."""
