"""Measurement of a policy: its rewards on training tasks, the signal of its groups, and the headroom to other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from hud.graders.group_signal import has_signal


@dataclass(frozen=True)
class Standing:
    """Measurement of a policy on training tasks."""

    job: str
    """Job of the measured runs, which imitation learns from."""
    tasks: int
    group: int
    mean: float
    best: float
    """Mean of the best reward of each task's runs."""
    with_signal: float
    """Share of the tasks whose runs have different rewards."""
    others: Mapping[str, float] = field(default_factory=dict)
    """Mean rewards of other models on the same tasks, by their names."""

    @property
    def within_reach(self) -> float:
        """Gain of a policy that did every time what its best run of a task did: the most that imitation can bring."""
        return self.best - self.mean

    def headroom(self, model: str | None = None) -> float:
        """Return the gain to another model, by default to the best of them, without any to a reward of 1; at least 0."""
        if model is not None:
            return max(0.0, self.others.get(model, self.mean) - self.mean)
        return max(0.0, max(self.others.values(), default=1.0) - self.mean)

    def as_dict(self) -> dict[str, Any]:
        """Return the measurement as plain data."""
        return asdict(self)


def standing_of(job: str, group: int, rewards: Mapping[str, Sequence[float]]) -> Standing | None:
    """Return the measurement of runs by task; None without a measured run."""
    groups = [list(values) for values in rewards.values() if values]
    if not groups:
        return None
    return Standing(
        job=job,
        tasks=len(groups),
        group=group,
        mean=fmean(value for values in groups for value in values),
        best=fmean(max(values) for values in groups),
        with_signal=fmean(float(has_signal(values)) for values in groups),
    )
