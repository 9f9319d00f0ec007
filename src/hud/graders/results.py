"""What a grader says: subscores, and the result they add up to."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class SubScore(BaseModel):
    """One named part of a grade."""

    name: str
    value: float
    """How well: 0 to 1, where the part is not itself shaped below zero."""
    weight: float = 1.0
    """Share of the whole. Positive weights are normalized to 1; a negative one is a penalty of that size."""
    children: list[SubScore] | None = None
    info: dict[str, Any] | None = None

    def __float__(self) -> float:
        return self.value


class EvaluationResult(BaseModel):
    """A grade with its reasons: what the second `yield` of a template may give."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)

    reward: float = 0.0
    done: bool = True
    content: str | None = None
    """What the grader has to say about the answer."""
    info: dict[str, Any] = Field(default_factory=dict)
    is_error: bool = Field(default=False, alias="isError")
    subscores: list[SubScore] | None = None

    def __float__(self) -> float:
        return self.reward
