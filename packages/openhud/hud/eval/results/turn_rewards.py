"""Rewards of a run's turns: those that its tools and hooks recorded, and those of its grade, added."""

from __future__ import annotations

from typing import Any

from hud.environment.connection import TURN_REWARD
from hud.errors import GraderFault
from hud.eval.grade import Grade
from hud.trace import AgentStep, Trace


def with_turn_rewards(frame: dict[str, Any], trace: Trace, task_id: str) -> dict[str, Any]:
    """Return a grade frame whose `turn_rewards` hold the recorded ones, too; the frame as it is without any.

    A reward belongs to the last turn before it. Raises `GraderFault` unless the grade has one number for each turn. A run whose
    agent records no turns has no rewards of turns.
    """
    graded = Grade.from_dict(frame).turn_rewards
    rest = {name: value for name, value in frame.items() if name != TURN_REWARD}
    recorded = _recorded(trace, frame.get(TURN_REWARD))
    turns = sum(isinstance(step, AgentStep) for step in trace.steps)
    if not turns or (graded is None and recorded is None):
        return {name: value for name, value in rest.items() if name != "turn_rewards"}
    if graded is not None and len(graded) != turns:
        raise GraderFault(
            f"Template {task_id!r} graded with {len(graded)} turn_rewards for a run of {turns} turns; give one number for "
            "each turn of the agent (an AgentStep of answer.trace)."
        )
    sides = [side for side in (graded, recorded) if side is not None]
    return {**rest, "turn_rewards": [sum(values) for values in zip(*sides, strict=True)]}


def _recorded(trace: Trace, last: Any) -> list[float] | None:
    """Return the recorded reward of each turn, with `last` for the last one; None if nothing was recorded."""
    rewards: list[float] = []
    recorded = False
    for step in trace.steps:
        if isinstance(step, AgentStep):
            rewards.append(0.0)
        reward = step.extra.get(TURN_REWARD)
        if isinstance(reward, int | float) and rewards:
            rewards[-1] += reward
            recorded = True
    if isinstance(last, int | float) and rewards:
        rewards[-1] += last
        recorded = True
    return rewards if recorded else None
