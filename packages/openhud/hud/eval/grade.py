"""`Grade`: the reward of a run, with its reasons."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

from hud.errors import GraderFault


@dataclass(frozen=True)
class Grade:
    """The environment's grade of a run.

    `reward` is None without a measurement (the environment, the grader or the infrastructure failed): the run enters no
    mean and no group.
    """

    reward: float | None = None
    done: bool = True
    content: str | None = None
    """The grader's comment on the answer."""
    info: dict[str, Any] = field(default_factory=dict)
    is_error: bool = False
    subscores: list[dict[str, Any]] = field(default_factory=list)
    """The tree of subscores: `{name, value, weight, children?, info?}`."""
    turn_rewards: list[float] | None = None
    """One number for each turn of the agent (`AgentStep`); None: the turns have no rewards of their own."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The environment's grade frame."""

    @classmethod
    def from_dict(cls, frame: dict[str, Any]) -> Grade:
        """Return the grade of a control frame; raises `GraderFault` for an invalid one."""
        score = frame.get("score", frame.get("reward"))
        content, info, subscores = frame.get("content"), frame.get("info"), frame.get("subscores")
        return cls(
            reward=None if score is None else _reward(score),
            done=bool(frame.get("done", True)),
            content=content if content is None or isinstance(content, str) else str(content),
            info=info if isinstance(info, dict) else {},
            is_error=bool(frame.get("isError", False)),
            subscores=[subscore for subscore in subscores if isinstance(subscore, dict)]
            if isinstance(subscores, list)
            else [],
            turn_rewards=_turn_rewards(frame.get("turn_rewards")),
            raw=frame,
        )

    @classmethod
    def ungraded(cls) -> Grade:
        """The grade of a run that was not measured."""
        return cls(done=False)

    @classmethod
    def agent_failed(cls) -> Grade:
        """The grade of a run that its agent failed: it counts, with reward 0."""
        return cls(reward=0.0, done=False)


def _reward(score: Any) -> float:
    """Return a frame's score, a finite float."""
    if isinstance(score, int | float) and math.isfinite(score):
        return float(score)
    raise GraderFault(f"The environment graded with {score!r:.100}; a score is a finite number.")


def _turn_rewards(values: Any) -> list[float] | None:
    """Return a frame's rewards of turns, finite floats."""
    if values is None:
        return None
    if isinstance(values, list) and all(
        isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in values
    ):
        return [float(value) for value in values]
    raise GraderFault(
        f"The environment graded with turn_rewards {values!r:.100}; they are a list of finite numbers."
    )
