"""Rewards: the forms of a template's second yield, as a grade frame of the control channel."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel

from hud.environment.tools.results import as_json
from hud.errors import GraderFault


def grade_frame(value: Any, reward_range: tuple[float, float], task_id: str) -> dict[str, Any]:
    """Return `{score, done, ...}` for a yielded number, dict with `score`, or `EvaluationResult`.

    Raises `GraderFault` for an invalid reward: no number, NaN, or outside `reward_range`.
    """
    if isinstance(value, BaseModel) and hasattr(value, "reward"):
        frame = value.model_dump(exclude_none=True, by_alias=True)
        frame["score"] = frame.pop("reward", None)
    elif isinstance(value, dict):
        if "score" not in value:
            raise GraderFault(
                f"Template {task_id!r} graded with a dict without 'score' (it has: {', '.join(map(str, value))})."
            )
        frame = dict(value)
    elif _is_number(value) or not hasattr(value, "reward"):
        frame = {"score": value}
    else:
        frame = {"score": value.reward}
    frame.setdefault("done", True)
    if "turn_rewards" in frame:
        frame["turn_rewards"] = _checked_turns(frame["turn_rewards"], task_id)
    score = _checked(frame.pop("score"), reward_range, task_id)
    # Reasons of any type are recorded and sent as JSON.
    return {"score": score, **as_json(frame)}


def _checked_turns(values: Any, task_id: str) -> list[float] | None:
    """Return rewards of turns as finite floats; a turn's reward may lie outside the range of a run's."""
    if values is None:
        return None
    if isinstance(values, list | tuple):
        try:
            numbers = [float(value) for value in values if hasattr(value, "__float__")]
        except (TypeError, ValueError, OverflowError):
            numbers = []
        if len(numbers) == len(values) and all(map(math.isfinite, numbers)):
            return numbers
    raise GraderFault(
        f"Template {task_id!r} graded with turn_rewards {values!r:.100}; they must be a list of finite numbers, one for each "
        "turn of the agent."
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _checked(score: Any, reward_range: tuple[float, float], task_id: str) -> float:
    try:
        reward = float(score) if _is_number(score) or hasattr(score, "__float__") else None
    except (TypeError, ValueError):
        reward = None
    if reward is None:
        raise GraderFault(
            f"Template {task_id!r} graded with {score!r}, a {type(score).__name__}; its second yield must be a "
            "number, a dict with 'score', or an EvaluationResult."
        )
    low, high = reward_range
    if not math.isfinite(reward):
        raise GraderFault(
            f"Template {task_id!r} graded with {reward}, which is not a finite number."
        )
    # Sums of weights may exceed the range by rounding; that is no error of the grader.
    if low - 1e-9 <= reward <= high + 1e-9:
        return min(max(reward, low), high)
    raise GraderFault(
        f"Template {task_id!r} graded with {reward:g}, outside [{low:g}, {high:g}]; scale the reward, or declare "
        "Environment(reward_range=(low, high))."
    )
