"""Speed from recorded rollouts: environments' delays, and seconds per token by batch size.

Concurrent sequences slow each other down. The model of a decode step with n sequences is a + c n seconds; a and c are
fitted to the recorded turns, whose concurrency follows from their times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from hud.errors import UsageError
from hud.trace import AgentStep, Trace


@dataclass(frozen=True)
class Turn:
    """One turn of a rollout."""

    tokens: int
    environment_seconds: float
    """Delay after it, until the next turn or the end of the rollout, in seconds."""


@dataclass(frozen=True)
class Shape:
    """Timing of a recorded rollout."""

    setup_seconds: float
    turns: tuple[Turn, ...]

    @property
    def tokens(self) -> int:
        """Number of sampled tokens."""
        return sum(turn.tokens for turn in self.turns)


@dataclass(frozen=True)
class DecodeCost:
    """Seconds of one decode step with n sequences: `base + per_sequence * n`."""

    base: float
    per_sequence: float

    def seconds(self, sequences: int) -> float:
        """Return the cost of one step."""
        return self.base + self.per_sequence * sequences


@dataclass(frozen=True)
class Measured:
    """Input of a simulation."""

    shapes: tuple[Shape, ...]
    decode: DecodeCost
    update_seconds: float
    """Duration of a step's update, including the checkpoint, in seconds."""
    overlapping: bool = False
    """True if training was concurrent with these rollouts, so that the mutual slowdown is included."""
    left_out: float = 0.0
    """Share of unused groups, such as those without signal."""
    apply_seconds: float = 0.0
    """Duration of the update's last part, optimizer and checkpoint, after the gradients, in seconds."""


def measure(
    traces: Iterable[tuple[float, Trace, float]],
    updates: Sequence[float],
    *,
    overlapping: bool = False,
    left_out: float = 0.0,
    applying: Sequence[float] = (),
) -> Measured:
    """Return the speed from `(started, trace, ended)` of each rollout, in seconds, and the steps' update times.

    `applying` holds the duration of each update's last part, if known.

    Raises `UsageError` without data.
    """
    shapes: list[Shape] = []
    drawn: list[tuple[float, float, int]] = []
    for started, trace, ended in traces:
        turns = _turns(trace)
        if turns:
            drawn += turns
            shapes.append(_shape(started, turns, ended))
    if not shapes or not updates:
        raise UsageError(
            "There is nothing to plan from: the job has no recorded turns with tokens, or the run no finished step. Train a "
            "few steps first."
        )
    last = median(applying) if applying else 0.0
    return Measured(tuple(shapes), _fit(drawn), median(updates), overlapping, left_out, last)


def turnaround(runs: Iterable[tuple[float, float]], environments: int) -> float:
    """Return the median seconds from the end of a rollout until its place began another: recording, queue and hand-over.

    `runs` holds `(started, ended)` of the rollouts of a job that kept all `environments` busy. With n places, the k-th end is
    followed by the start n + k. 0 with too few rollouts.
    """
    times = list(runs)
    starts, ends = sorted(start for start, _ in times), sorted(end for _, end in times)
    gaps = [start - end for start, end in zip(starts[environments:], ends, strict=False)]
    return max(0.0, median(gaps)) if gaps else 0.0


def _turns(trace: Trace) -> list[tuple[float, float, int]]:
    """Return `(began, ended, tokens)` of each turn."""
    return [
        (step.started_at.timestamp(), step.ended_at.timestamp(), step.usage.completion_tokens)
        for step in trace.steps
        if isinstance(step, AgentStep)
        and step.ended_at is not None
        and step.usage is not None
        and step.usage.completion_tokens > 0
    ]


def _shape(started: float, turns: list[tuple[float, float, int]], ended: float) -> Shape:
    following = [began for began, _, _ in turns[1:]] + [ended]
    return Shape(
        max(0.0, turns[0][0] - started),
        tuple(
            Turn(tokens, max(0.0, after - end))
            for (_, end, tokens), after in zip(turns, following, strict=True)
        ),
    )


def _fit(drawn: list[tuple[float, float, int]]) -> DecodeCost:
    """Fit seconds per token to the number of concurrent sequences, by non-negative least squares."""
    beside = _beside(drawn)
    cost = np.array([max(end - began, 0.0) / tokens for began, end, tokens in drawn])
    weight = np.sqrt(np.array([tokens for _, _, tokens in drawn], dtype=float))
    both = np.stack([np.ones_like(beside), beside], axis=1) * weight[:, None]
    (base, per_sequence), *_ = np.linalg.lstsq(both, cost * weight, rcond=None)
    if base < 0:  # A fit through the origin.
        base, per_sequence = (
            0.0,
            float((cost * beside * weight**2).sum() / (beside**2 * weight**2).sum()),
        )
    elif per_sequence < 0:
        base, per_sequence = fmean(cost), 0.0
    return DecodeCost(float(base), float(per_sequence))


def _beside(drawn: list[tuple[float, float, int]]) -> np.ndarray:
    """Return, for each turn, the mean number of concurrent turns, itself included."""
    edges = sorted([(began, 1) for began, _, _ in drawn] + [(end, -1) for _, end, _ in drawn])
    times = np.array([time for time, _ in edges])
    active = np.cumsum([change for _, change in edges])
    # Integral of the number of active turns, up to each edge.
    area = np.concatenate(([0.0], np.cumsum(active[:-1] * np.diff(times))))
    began = np.array([turn[0] for turn in drawn])
    ended = np.array([turn[1] for turn in drawn])
    passed = np.maximum(ended - began, 1e-9)
    shared: np.ndarray = (np.interp(ended, times, area) - np.interp(began, times, area)) / passed
    return shared.clip(1.0)
