"""Requests and answers of the training API (`/v1/models/{id}/train/...`).

Plain data; this module needs no torch. Requests refuse unknown fields. Results hold exactly the keys that
HUD's client expects, because it refuses any other.

A **trajectory** is one run: its samples (one for each turn of the model) and its reward. The trainer turns it
into one or more **datums** (`hud.learning.datums`).
"""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hud.errors import FailureKind
from hud.trace import Sample


class BuiltinLoss(StrEnum):
    """The losses that every trainer of this API has. `TrainingClient.available_losses()` lists all of ours."""

    CROSS_ENTROPY = "cross_entropy"
    IMPORTANCE_SAMPLING = "importance_sampling"
    PPO = "ppo"
    CISPO = "cispo"
    DRO = "dro"


LossFn = str
"""A loss by name: one of `BuiltinLoss`, or any other that `available_losses()` lists."""


Failure = FailureKind | Literal["timeout"]
"""Kind of a run's failure; `timeout`: its time limit ended it."""


class Strict(BaseModel):
    """Plain data that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


_null_is_empty = BeforeValidator(lambda value: [] if value is None else value)
_Ids = Annotated[list[int], _null_is_empty]
_Swaps = Annotated[list[tuple[int, str | None]], _null_is_empty]
_Logprob = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


_OPTIONAL = ("prompt_token_ids", "swaps")


class TrajectorySample(Sample):
    """A sample as it is sent to a trainer, with a weight for each token where a loss takes them."""

    model_config = ConfigDict(extra="forbid")

    prompt_token_ids: _Ids = Field(default_factory=list)
    output_token_ids: list[int]
    output_logprobs: list[_Logprob] = Field(default_factory=list)
    """One for each output id; JSON null, NaN here, where a token has none (it was appended, not sampled). Empty where no
    policy sampled the turn: only `cross_entropy` can use it."""
    swaps: _Swaps = Field(default_factory=list)
    weights: list[float] | None = None
    """For `cross_entropy`: one for each output id, 1 unless given, negative allowed."""

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        sent: dict[str, Any] = handler(self)
        return {name: value for name, value in sent.items() if value != [] or name not in _OPTIONAL}


class TrajectoryPayload(Strict):
    """One run as training data. A list of these, in order, is a batch."""

    samples: list[TrajectorySample]
    """At least one, except where they are `recorded`, or the run failed before the policy sampled a token."""
    recorded: int | None = None
    """`samples_checksum` of the samples that are on record under `trace_id`, in place of `samples`."""
    reward: float
    trace_id: str | None = None
    group_id: str | None = None
    """Group of the run; `group_size` is for trajectories without one."""
    failure: Failure | None = None
    """Kind of the run's failure, if it failed: `AdvantageOptions.failed_runs` decides what happens to it."""

    @model_validator(mode="after")
    def _has_tokens(self) -> TrajectoryPayload:
        if self.recorded is not None and (self.samples or self.trace_id is None):
            raise ValueError("recorded samples have a trace_id, and none are sent with it")
        if not self.samples and self.recorded is None and self.failure is None:
            raise ValueError("a trajectory holds at least one sample, unless its run failed")
        return self


TrainInput = str | TrajectoryPayload
"""A trace id, resolved where the traces are stored, or the trajectory itself."""


FailedRuns = Literal["drop_run", "drop_group", "zero"]
"""`drop_run`, the default everywhere: the run leaves its group, whose mean is over the rest. `drop_group`: its group leaves
with it. `zero`: it counts as reward 0."""


class AdvantageOptions(Strict):
    """Options of the advantages. The defaults are those of token-sum losses."""

    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """Baseline: the group's mean, the mean of the group's other runs, or none."""
    divide_by_std: bool = False
    """Divide by the group's standard deviation. Off: it favours the easiest and hardest tasks."""
    std_epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation before dividing."""
    failed_runs: FailedRuns = "drop_run"
    """Effect of a failure that is not the agent's (environment, grader, infrastructure, time-out)."""
    min_group_size: int = Field(default=2, ge=1)
    """With `drop_run`, a group with failures that is left with fewer runs than this is dropped."""


class _Batch(Strict):
    inputs: list[TrainInput] = Field(min_length=1)
    group_size: int | None = Field(default=None, ge=1)
    """Contiguous slices of this many inputs are one group, where the inputs have no group of their own. Where they have one,
    or `group_ids` is given, each group must have this size."""
    reward_scale: float = 1.0
    """Multiplies every advantage."""
    group_ids: list[str] | None = None
    """One for each input, in place of the inputs' own; equal ids are one group, in any order."""
    advantages: AdvantageOptions | None = None


class ForwardBackwardRequest(_Batch):
    """Accumulate the gradient of a loss over a batch."""

    loss_fn: LossFn = BuiltinLoss.IMPORTANCE_SAMPLING.value
    loss_fn_config: dict[str, float] | None = None
    num_substeps: int = Field(default=1, ge=1)
    """Passes to split the batch into, at least. It bounds memory and never changes the gradient."""
    idempotency_key: str | None = None
    """A repeated request with the same key gets the first one's answer and is not run again."""


class ForwardBackwardResult(Strict):
    """Metrics of a pass. Names carry their reduction: `loss:sum`, `entropy:mean`."""

    metrics: dict[str, float]
    num_datums: int


class ForwardRequest(_Batch):
    """Compute logprobs for a custom loss, and keep what `backward` needs."""


class TrainingDatum(Strict):
    """Origin of a datum. Several may share a trajectory."""

    reward: float
    traj_idx: int
    """Position of its trajectory among the inputs."""
    group_idx: int | None = None
    """Number of its group, in order of first appearance; None where the batch was not grouped."""


class DatumTensors(TrainingDatum):
    """One datum as a custom loss sees it. The three lists have one entry for each token of the sequence."""

    logprobs: list[float]
    """Under the current policy, natural log; 0 where the mask is 0."""
    sampling_logprobs: list[float]
    """Under the policy that sampled; 0 where the mask is 0."""
    mask: list[float]
    """1.0 on tokens that the policy sampled, 0.0 on those it was shown."""


class ForwardResult(Strict):
    """Logprobs of a batch; `forward_id` names the context that `backward` continues."""

    forward_id: str
    data: list[DatumTensors]


class BackwardRequest(Strict):
    """Accumulate the gradient of -Σ w·logprob: `weights[d][t]` is -dC/dlogprob of the caller's loss C."""

    forward_id: str
    weights: list[list[float]]
    metrics: dict[str, float] = Field(default_factory=dict)
    idempotency_key: str | None = None


class OptimStepRequest(Strict):
    """Apply what was accumulated, with AdamW, and append a checkpoint."""

    learning_rate: float = Field(gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Scale the gradient down to this norm where it is longer."""
    in_flight: bool = False
    """True: turns that are being sampled are continued by the new weights; False: they are ended by the old ones."""
    save: bool = True
    """False: apply only. A later step's checkpoint stands for this one too; until then a kill loses it."""
    allow_empty: bool = False
    """True: where nothing was accumulated, change nothing and return the head without paths; False: a conflict."""
    measured_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Mean over all measured runs of the step, where the batches hold only some; None: over those of the batches."""
    idempotency_key: str | None = None


class OptimStepResult(Strict):
    """The checkpoint that a step made; without paths where it made none, and then the head as it was."""

    step: int
    checkpoint_id: str
    sampler_path: str
    state_path: str
    model: str


class DiscardedGradient(Strict):
    """A gradient that was thrown away without a step."""

    client: str
    """The client that had accumulated it: process, machine and command."""
    passes: int
    """Calls of `forward_backward` and `backward`."""
    runs: int

    def __str__(self) -> str:
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        return f"{passes} over {self.runs} runs of {self.client}"


class OpenedSession(Strict):
    """Start of a training session."""

    model: str
    head: str | None
    """The checkpoint that the first step follows; None: the weights that the model began with."""
    step: int
    discarded: DiscardedGradient | None
    """The gradient that another client had left."""


class StepResult(OptimStepResult):
    """Result of `TrainingClient.step`: its checkpoint and the groups it learned from. `str()` is one line of a log."""

    applied: bool
    """False: nothing was accumulated, the weights are as they were, and `step` and `checkpoint_id` are the head's."""
    metrics: dict[str, float]
    """Metrics of the batch, as `ForwardBackwardResult.metrics`."""
    num_datums: int

    @property
    def reward(self) -> float | None:
        """Mean reward of the runs that count; None where none does."""
        return self.metrics.get("reward:mean")

    @property
    def groups(self) -> int:
        """Groups of the batch."""
        return round(self.metrics.get("groups:sum", 0.0))

    @property
    def groups_with_signal(self) -> int:
        """Groups whose runs differ in reward: the others have no advantage to learn from."""
        return round(self.metrics.get("spread_groups:sum", 0.0))

    @property
    def failed_runs(self) -> int:
        """Runs that failed by no fault of the agent's; see `AdvantageOptions.failed_runs`."""
        return round(self.metrics.get("failed_runs:sum", 0.0))

    def __str__(self) -> str:
        told = []
        if self.reward is not None:
            told.append(f"reward {self.reward:.3f}")
        if self.groups:
            many = "group" if self.groups == 1 else "groups"
            told.append(f"{self.groups_with_signal} of {self.groups} {many} had signal")
        if self.failed_runs:
            told.append(f"{self.failed_runs} failed {'run' if self.failed_runs == 1 else 'runs'}")
        if not self.applied:
            told.append("nothing applied")
        return f"step {self.step}: {', '.join(told) or 'applied'}"


class LossesResult(Strict):
    """Names that `loss_fn` may take."""

    losses: list[str]


class CheckpointResponse(BaseModel):
    """One node of a model's checkpoint tree. Exactly one is active, or none: then the base weights serve."""

    model_config = ConfigDict(extra="allow")

    id: str
    name: str
    checkpoint_name: str | None = None
    prev_model_checkpoint_id: str | None = None
    is_active: bool = False
    created_at: datetime
    num_traces: int | None = None
    num_datums: int | None = None
    num_tokens: int | None = None
    mean_reward: float | None = None
    """Over all measured runs of the step; `metrics["trained_reward:mean"]` is over those that were learned from."""
    learning_rate: float | None = None
    loss_fn: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
