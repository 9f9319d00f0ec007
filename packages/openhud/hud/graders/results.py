"""Results of graders: subscores, and their sum."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _at_most_one(value: float) -> float:
    if not math.isfinite(value) or value > 1.0 + 1e-9:
        raise ValueError("a subscore must be a finite number, at most 1")
    return min(value, 1.0)


class SubScore(BaseModel):
    """One named part of a grade."""

    name: str
    value: Annotated[float, AfterValidator(_at_most_one)]
    """Score from 0 to 1; below 0 by shaping only."""
    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Share of the whole. Positive weights are normalized to 1; a negative one is a penalty of that size."""
    children: list[SubScore] | None = None
    info: dict[str, Any] | None = None

    def __float__(self) -> float:
        return self.value


class EvaluationResult(BaseModel):
    """A grade with its reasons, for the second `yield` of a template."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)

    reward: float = 0.0
    done: bool = True
    content: str | None = None
    """The grader's comment on the answer."""
    info: dict[str, Any] = Field(default_factory=dict)
    is_error: bool = Field(default=False, alias="isError")
    subscores: list[SubScore] | None = None
    turn_rewards: list[float] | None = None
    """One number for each turn of the agent, to credit that turn in training."""

    @property
    def isError(self) -> bool:  # noqa: N802 (the control channel's spelling)
        """Alias of `is_error`."""
        return self.is_error

    def __float__(self) -> float:
        return self.reward
