"""Reward shaping: gates, step bonuses, length limits and schedules, each recorded in the tree of subscores.

All of these take and return an `EvaluationResult` (or take a plain number), so they chain:

    result = await combine(SubScore(name="format", value=f, weight=0.2), SubScore(name="fix", value=fix))
    result = gate(result, outcome=fix, floor=-1.0)
    yield step_bonus(result, steps=len(answer.trace.tool_calls), most=10, bonus=0.1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hud.errors import UsageError
from hud.graders.progress import training_progress
from hud.graders.results import EvaluationResult, SubScore

Score = float | EvaluationResult
FADE = "fade"
"""Name of the subscore that holds the share of the process reward."""


def gate(result: Score, outcome: float | SubScore, *, floor: float = 0.0) -> EvaluationResult:
    """Set the whole reward to `floor` if the outcome is 0 or below.

    Without it a policy can earn format or process rewards alone. A `floor` below 0 (say -1.0) needs an
    environment that declares `reward_range=(-1.0, 1.0)`. Raises `UsageError` for an outcome that is NaN.
    """
    achieved = float(outcome)
    if math.isnan(achieved):
        raise UsageError("gate: the outcome is not a number.")
    passed = achieved > 0.0
    shaped = _copy(result)
    if not passed:
        shaped.reward = floor
    info = {"floor": floor, "passed": passed}
    return _noted(shaped, SubScore(name="gate", value=float(passed), weight=0.0, info=info))


def step_bonus(
    result: Score, steps: int, *, most: int, fewest: int = 1, bonus: float = 0.1
) -> EvaluationResult:
    """Reward fewer steps: `bonus` is the share of the reward that depends on their number.

    It is paid in full at `fewest` steps or less, not at all at `most` or more, and linearly between.
    A reward of 0 or below is unchanged.
    Raises `UsageError` unless 0 <= bonus <= 1 and fewest < most.
    """
    if not 0.0 <= bonus <= 1.0 or most <= fewest:
        raise UsageError("step_bonus needs 0 <= bonus <= 1 and fewest < most.")
    shaped = _copy(result)
    saved = min(max((most - steps) / (most - fewest), 0.0), 1.0)
    if shaped.reward > 0:
        shaped.reward *= 1.0 - bonus * (1.0 - saved)
    info = {"steps": steps, "fewest": fewest, "most": most, "bonus": bonus}
    return _noted(shaped, SubScore(name="step_bonus", value=saved, weight=0.0, info=info))


def length_normalized(result: Score, length: int, *, target: int) -> EvaluationResult:
    """Scale a positive reward by `target / length` (same unit), at most 1. Raises `UsageError` unless `target` >= 1."""
    if target < 1:
        raise UsageError("length_normalized needs a target of at least 1.")
    shaped = _copy(result)
    factor = min(1.0, target / max(length, 1))
    if shaped.reward > 0:
        shaped.reward *= factor
    info = {"length": length, "target": target}
    return _noted(shaped, SubScore(name="length", value=factor, weight=0.0, info=info))


def overlong_penalty(result: Score, length: int, *, most: int, margin: int) -> EvaluationResult:
    """Subtract up to 1 from the reward of a long answer: 0 up to `most - margin`, 1 from `most` on, linear in between.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13). `length` is in tokens, such as
    `answer.trace.usage.completion_tokens`. The environment declares a `reward_range` from -1. Raises `UsageError` unless
    0 < margin <= most.
    """
    if not 0 < margin <= most:
        raise UsageError("overlong_penalty needs 0 < margin <= most.")
    shaped = _copy(result)
    penalty = min(max((length - (most - margin)) / margin, 0.0), 1.0)
    shaped.reward -= penalty
    info = {"length": length, "most": most, "margin": margin}
    return _noted(shaped, SubScore(name="overlong", value=-penalty, weight=0.0, info=info))


@dataclass(frozen=True)
class Fade:
    """A schedule from process rewards to outcome rewards over training.

    Progress is the completed share of training, 0 to 1, set for each run; it is 1 outside training, so that evaluations
    measure the outcome alone. Until `start` the process reward has the weight `share`; from `end` on the weight is 0; in
    between it is linear. A template writes `yield Fade()(process, outcome)`.
    """

    start: float = 0.0
    end: float = 0.5
    share: float = 0.5

    def __post_init__(self) -> None:
        if not (0.0 <= self.start <= self.end <= 1.0 and 0.0 <= self.share <= 1.0):
            raise UsageError("Fade needs 0 <= start <= end <= 1 and 0 <= share <= 1.")

    def process_share(self, progress: float) -> float:
        """Return the weight of the process reward at a point of training."""
        if progress >= self.end:
            return 0.0
        if progress <= self.start:
            return self.share
        return self.share * (self.end - progress) / (self.end - self.start)

    def reward(self, process: float, outcome: float, progress: float) -> float:
        """Return the reward at a point of training."""
        share = self.process_share(progress)
        return share * process + (1.0 - share) * outcome

    def __call__(self, process: Score, outcome: Score) -> EvaluationResult:
        """Return the outcome's grade with the reward at this point of training; subscore `fade` is the process weight."""
        progress = training_progress()
        shaped, share = _copy(outcome), self.process_share(progress)
        shaped.reward = self.reward(_copy(process).reward, shaped.reward, progress)
        info = {"progress": progress, "start": self.start, "end": self.end}
        return _noted(shaped, SubScore(name=FADE, value=share, weight=0.0, info=info))


def _copy(result: Score) -> EvaluationResult:
    if isinstance(result, EvaluationResult):
        return result.model_copy(update={"subscores": list(result.subscores or [])})
    return EvaluationResult(reward=float(result), subscores=[])


def _noted(result: EvaluationResult, part: SubScore) -> EvaluationResult:
    """Record the shaping as a subscore of weight 0: it is no part of the sum."""
    result.subscores = [*(result.subscores or []), part]
    return result
