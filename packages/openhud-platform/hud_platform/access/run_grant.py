"""Run grant: the content of a run pass, by which a program's model calls belong to one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class RunGrant:
    """Permissions of a run pass: calls of one run's model, with the run's sampling and within its limits."""

    pass_id: str
    trace_id: str
    model: str
    """Model of the run, by which every model's name in a request is replaced."""
    checkpoint: str | None = None
    """None: the head, read when sampling begins."""
    side_model: str | None = None
    """Frozen model of side calls (titles, summaries); None: they use the run's model."""
    side_names: tuple[str, ...] = ()
    """Names of models by which the program makes side calls, besides `side_model`."""
    trainable: bool = True
    """False: the program's own sampling is kept, also where no sample can be trained on."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SamplingParams` that replace the program's; `max_tokens` is an upper bound."""
    calls: int | None = None
    """Most model calls of the run."""
    tokens: int | None = None
    """Most sampled tokens of the run."""
    cost_usd: float | None = None
    """Most cost of the run's calls of priced models, in dollars."""

    @property
    def reference(self) -> str:
        """Reference of the run's model, with its checkpoint."""
        return self.model if self.checkpoint is None else f"{self.model}@{self.checkpoint}"

    def is_side_call(self, name: str) -> bool:
        """Return True if a request for the model `name` is a side call."""
        return name.removeprefix("models/") in (self.side_model, *self.side_names)

    def to_dict(self) -> dict[str, Any]:
        """Return the grant as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the grant of plain data."""
        return cls(**{**content, "side_names": tuple(content["side_names"])})
