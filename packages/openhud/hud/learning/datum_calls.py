"""Calls of a training session over single datums: every tensor of a loss comes with the request.

`training_calls` takes runs with rewards and computes their advantages; these take what the loss itself takes. They have no
route of their own: a plug that serves another trainer's protocol (`hud_platform.plugs.route_plugs`) translates to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from hud.learning.training_calls import Call
from hud.learning.wire_types import OptimStepRequest
from hud.trace.sampled.pictures import Picture


class Columns(BaseModel):
    """Arrays as bytes, base64 in JSON."""

    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class DatumColumns(Columns):
    """A sequence of N positions, each with the token that it predicts. Float columns are (N,) float32."""

    tokens: bytes
    """(N,) int64: input tokens."""
    targets: bytes
    """(N,) int64: the token that each position predicts, usually the next input token; (N, K) with `targets_each`."""
    targets_each: int | None = Field(default=None, ge=1)
    """K: several targets of each position, for `cross_entropy` alone; None: one."""
    weights: bytes | None = None
    """For `cross_entropy`, as many as targets; None: 1 everywhere."""
    logprobs: bytes | None = None
    """q of each target, natural log, for the other losses."""
    advantages: bytes | None = None
    ratio_mask: bytes | None = None
    """For `gspo`: the positions whose ratios are averaged; None: those with an advantage."""
    pictures: tuple[Picture, ...] = ()
    """Pictures among the input tokens, with their files."""


class DatumPassRequest(Columns):
    """Compute logprobs and the loss of datums and, unless `forward_only`, accumulate the gradient."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    datums: list[DatumColumns] = Field(min_length=1)
    loss_fn: str
    loss_fn_config: dict[str, float] = Field(default_factory=dict)
    forward_only: bool = False


class DatumPassResult(Columns):
    """Logprobs and metrics of a pass."""

    logprobs: list[bytes]
    """For each datum (N,) or (N, K) float32: logprobs of its targets under the current policy."""
    metrics: dict[str, float]
    """Names carry their reduction: `loss:sum`."""


class StepRequest(BaseModel):
    """Apply the accumulated gradient, without a checkpoint."""

    learning_rate: float = Field(ge=0, allow_inf_nan=False)
    """0: the optimizer's moments change alone."""
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(gt=0, allow_inf_nan=False)
    weight_decay: float = Field(ge=0, allow_inf_nan=False)
    max_grad_norm: float | None = Field(default=None, gt=0)

    def optimizer(self) -> OptimStepRequest:
        """Return the step as the trainer takes it."""
        return OptimStepRequest.model_construct(**self.model_dump(), save=False)


class StepMetrics(BaseModel):
    """Answer to `StepRequest`."""

    step: int
    metrics: dict[str, float]


class SaveRequest(BaseModel):
    """Save the current weights and optimizer state as a checkpoint, and move the head to it. A head that holds them already
    is not saved again."""


class SavedState(BaseModel):
    """Answer to `SaveRequest`."""

    checkpoint_id: str
    step: int


class LoadRequest(BaseModel):
    """Continue from another checkpoint of the model. Drops the accumulated gradient."""

    checkpoint: str | None
    """None: the base weights."""
    optimizer: bool
    """False: with a new optimizer state."""


class Draws(BaseModel):
    """Tokens to draw at every position of a prompt, with replacement."""

    count: int = Field(ge=1)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0)


class Targets(BaseModel):
    """Tokens to score at positions of a prompt, in the order of the positions."""

    rows: list[int]
    """Positions, counted from the prompt's second token."""
    tokens: list[int]
    """A token id for each of `rows`."""


class ScoreRequest(BaseModel):
    """Compute the logprobs of a prompt's tokens under a checkpoint."""

    checkpoint: str | None
    """As in `TokenEngine.stream`."""
    prompt: list[int]
    top: int = Field(default=0, ge=0)
    """Number of most likely tokens to return for each position."""
    draws: Draws | None = None
    targets: Targets | None = None


class PromptScores(BaseModel):
    """Answer to `ScoreRequest`, for every token but the first."""

    logprobs: list[float]
    top: list[list[tuple[int, float]]] | None = None
    """Most likely tokens of each position, in descending order."""
    drawn: list[list[tuple[int, float]]] | None = None
    """Tokens drawn at each position, with their logprobs at temperature 1."""
    targets: list[float] | None = None
    """Logprobs of the request's targets, in their order."""


DATUM_PASS = Call("datum-pass", DatumPassRequest, DatumPassResult)
DATUM_STEP = Call("datum-step", StepRequest, StepMetrics)
SAVE = Call("save", SaveRequest, SavedState)
LOAD: Call[LoadRequest, Any] = Call("load", LoadRequest, type(None))
SCORE = Call("score", ScoreRequest, PromptScores)


def packed(values: npt.ArrayLike, dtype: npt.DTypeLike) -> bytes:
    """Return an array as a column."""
    return np.ascontiguousarray(values, dtype).tobytes()
