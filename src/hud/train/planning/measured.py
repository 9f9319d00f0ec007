"""Speed from recorded rollouts: environments' delays, and seconds for a token by batch size.

A sequence that is drawn beside others is slowed by them. One decode step with n sequences is taken to cost a + c n
seconds, and both are fitted to the recorded turns, whose neighbours are known from the times that they were drawn at.
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
    """Seconds after it, until the next turn began or the rollout was over."""


@dataclass(frozen=True)
class Shape:
    """One recorded rollout, without its content."""

    setup_seconds: float
    turns: tuple[Turn, ...]

    @property
    def tokens(self) -> int:
        """Tokens that were drawn."""
        return sum(turn.tokens for turn in self.turns)


@dataclass(frozen=True)
class DecodeCost:
    """Seconds of one decode step with n sequences: `base + each * n`."""

    base: float
    each: float

    def seconds(self, sequences: int) -> float:
        """Return the cost of one step."""
        return self.base + self.each * sequences


@dataclass(frozen=True)
class Measured:
    """Input of a simulation."""

    shapes: tuple[Shape, ...]
    decode: DecodeCost
    update_seconds: float
    """Of one step's update, checkpoint included."""
    overlapping: bool = False
    """True where training went on beside these rollouts, so that each has slowed down the other already."""
    left_out: float = 0.0
    """Share of groups that no step learned from, as those whose runs had all the same reward."""
    apply_seconds: float = 0.0
    """Part of an update after all of its groups are in the gradient: the optimizer, and the checkpoint."""


def measure(
    traces: Iterable[tuple[float, Trace, float]],
    updates: Sequence[float],
    *,
    overlapping: bool = False,
    left_out: float = 0.0,
    applying: Sequence[float] = (),
) -> Measured:
    """Return what `(started, trace, ended)` of each rollout, in seconds, and the steps' update times say.

    `applying` holds the last part of each update, where it is known.

    Raises `UsageError` where there is nothing to learn from.
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
    """Fit seconds for a token to how many sequences were drawn beside it, by least squares; neither part is negative."""
    beside = _beside(drawn)
    cost = np.array([max(end - began, 0.0) / tokens for began, end, tokens in drawn])
    weight = np.sqrt(np.array([tokens for _, _, tokens in drawn], dtype=float))
    both = np.stack([np.ones_like(beside), beside], axis=1) * weight[:, None]
    (base, each), *_ = np.linalg.lstsq(both, cost * weight, rcond=None)
    if base < 0:  # Through the origin.
        base, each = 0.0, float((cost * beside * weight**2).sum() / (beside**2 * weight**2).sum())
    elif each < 0:
        base, each = fmean(cost), 0.0
    return DecodeCost(float(base), float(each))


def _beside(drawn: list[tuple[float, float, int]]) -> np.ndarray:
    """Return, for each turn, how many turns were being drawn on average while it was, itself included."""
    edges = sorted([(began, 1) for began, _, _ in drawn] + [(end, -1) for _, end, _ in drawn])
    times = np.array([time for time, _ in edges])
    active = np.cumsum([change for _, change in edges])
    # The integral of how many are active, up to each edge.
    area = np.concatenate(([0.0], np.cumsum(active[:-1] * np.diff(times))))
    began = np.array([one[0] for one in drawn])
    ended = np.array([one[1] for one in drawn])
    passed = np.maximum(ended - began, 1e-9)
    shared: np.ndarray = (np.interp(ended, times, area) - np.interp(began, times, area)) / passed
    return shared.clip(1.0)
