"""`Grade`: what a run was worth."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Grade:
    """The environment's verdict on a run.

    `reward` is None where nothing was measured (the environment, the grader or the machinery failed): such
    a run enters no mean and no group.
    """

    reward: float | None = None
    done: bool = True
    content: str | None = None
    """What the grader says about the answer."""
    info: dict[str, Any] = field(default_factory=dict)
    is_error: bool = False
    subscores: list[dict[str, Any]] = field(default_factory=list)
    """The tree of subscores: `{name, value, weight, children?, info?}`."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The grade frame as the environment sent it."""

    @classmethod
    def from_dict(cls, frame: dict[str, Any]) -> Grade:
        """Return the grade that a frame of the control channel holds."""
        score = frame.get("score", frame.get("reward"))
        return cls(
            reward=None if score is None else float(score),
            done=bool(frame.get("done", True)),
            content=frame.get("content"),
            info=frame.get("info") or {},
            is_error=bool(frame.get("isError", False)),
            subscores=frame.get("subscores") or [],
            raw=frame,
        )

    @classmethod
    def ungraded(cls) -> Grade:
        """The grade of a run that was not measured."""
        return cls(done=False)

    @classmethod
    def agent_failed(cls) -> Grade:
        """The grade of a run that its agent broke: that counts, as nothing achieved."""
        return cls(reward=0.0, done=False)
