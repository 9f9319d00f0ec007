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
from hud.graders.group_signal import Baseline
from hud.trace import Sample

OptimizerName = Literal["adamw", "muon"]


class BuiltinLoss(StrEnum):
    """The losses of every trainer with this API. `TrainingClient.available_losses()` lists OpenHUD's."""

    CROSS_ENTROPY = "cross_entropy"
    IMPORTANCE_SAMPLING = "importance_sampling"
    PPO = "ppo"
    CISPO = "cispo"
    DRO = "dro"


LossFn = str
"""A loss by name: one of `BuiltinLoss`, or any other that `available_losses()` lists."""


Failure = FailureKind | Literal["timeout"]
"""Kind of a run's failure; `timeout`: its time limit ended it."""


IdempotencyKey = Annotated[str, Field(min_length=1, max_length=255)]
"""Key of one request. It is stored with the checkpoint of a step, and listed with it."""


class Strict(BaseModel):
    """Plain data that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Request(Strict):
    """A request, which reaches an engine in another process with the numbers that it was sent with: NaN would become null."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


_null_is_empty = BeforeValidator(lambda value: [] if value is None else value)
_Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Ids = Annotated[list[_Id], _null_is_empty]
_Swaps = Annotated[list[tuple[int, str | None]], _null_is_empty]
_Logprob = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


_OPTIONAL = ("prompt_token_ids", "swaps", "pictures", "excluded")


class TrajectorySample(Sample):
    """A sample in a training request, with a weight for each token if the loss has weights."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    prompt_token_ids: _Ids = Field(default_factory=list)
    output_token_ids: list[_Id]
    output_logprobs: list[_Logprob] = Field(default_factory=list)
    """Logprob of each output id; NaN (JSON null) for a token that was appended, not sampled. Empty for a turn without a
    policy: only `cross_entropy` can use it."""
    swaps: _Swaps = Field(default_factory=list)
    weights: list[float] | None = None
    """For `cross_entropy`: weight of each output id; default 1, may be negative."""

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        sent: dict[str, Any] = handler(self)
        return {
            name: value
            for name, value in sent.items()
            if value not in ([], None) or name not in _OPTIONAL
        }


class TrajectoryPayload(Request):
    """A run as training data. A batch is an ordered list of these."""

    samples: list[TrajectorySample]
    """At least one, unless `recorded` is set, or the run failed before the policy sampled a token."""
    recorded: int | None = None
    """`samples_checksum` of the samples stored under `trace_id`, instead of `samples`."""
    reward: float
    trace_id: str | None = None
    group_id: str | None = None
    """Group of the run; `group_size` is for trajectories without one."""
    failure: Failure | None = None
    """Failure kind of a failed run, handled by `AdvantageOptions.failed_runs`."""
    turn_rewards: list[float] | None = None
    """Reward of each turn, one for each sample; None: the run's turns have none (`hud.learning.turn_rewards`)."""

    @model_validator(mode="after")
    def _has_tokens(self) -> TrajectoryPayload:
        if self.recorded is not None and (self.samples or self.trace_id is None):
            raise ValueError("recorded samples have a trace_id, and none are sent with it")
        if not self.samples and self.recorded is None and self.failure is None:
            raise ValueError("a trajectory holds at least one sample, unless its run failed")
        return self


MOST_DATUMS = 64
"""Default of the most datums of a run."""


TrainInput = str | TrajectoryPayload
"""A trace id, resolved by the store, or the trajectory itself."""


FailedRuns = Literal["drop_run", "drop_group", "zero"]
"""`drop_run` (default): the run is removed from its group, whose mean is over the rest. `drop_group`: its whole group is
removed. `zero`: it counts with reward 0."""


class AdvantageOptions(Request):
    """Options of the advantages. The defaults are those of token-sum losses."""

    baseline: Baseline = "mean"
    """Value subtracted from a reward: the group's mean, the mean of the group's other runs, or none."""
    divide_by_std: bool = False
    """Divide by the group's standard deviation. Default off: it favours the easiest and hardest tasks."""
    std_epsilon: float = Field(default=1e-6, gt=0)
    """Epsilon added to the standard deviation."""
    failed_runs: FailedRuns = "drop_run"
    """Effect of a failure that is not the agent's (environment, grader, infrastructure, time-out)."""
    min_group_size: int = Field(default=2, ge=1)
    """With `drop_run`: minimum remaining runs of a group with failures; a smaller group is dropped."""
    permutation_seed: int | None = Field(default=None, ge=0)
    """Seed of a random permutation of the advantages within each group, for null experiments; None: no permutation."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of a later turn's reward, for each turn in between."""
    turn_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the turns' own advantages beside the run's. 0: rewards of turns have no effect."""


class _Batch(Request):
    inputs: list[TrainInput] = Field(min_length=1)
    group_size: int | None = Field(default=None, ge=1)
    """Size of groups. Inputs without a group are grouped by contiguous slices; given groups, or `group_ids`, must have
    this size."""
    reward_scale: float = 1.0
    """Factor of every advantage."""
    group_ids: list[str] | None = None
    """Group id of each input, replacing the inputs' own; equal ids are one group, in any order."""
    advantages: AdvantageOptions | None = None
    max_datums: int | None = Field(default=None, ge=1)
    """Most datums of a run; those with the most sampled tokens are kept. None: `MOST_DATUMS`."""


class ForwardBackwardRequest(_Batch):
    """Accumulate the gradient of a loss over a batch."""

    loss_fn: LossFn = BuiltinLoss.IMPORTANCE_SAMPLING.value
    loss_fn_config: dict[str, float] | None = None
    teacher: str | None = None
    """Model whose logprobs are the reference of the loss's KL terms (`kl_advantage_coef`, `kl_coef`), in place of the base. All runs
    that count are trained on, also those of groups without signal."""
    teacher_checkpoint: str | None = None
    """Id or name of the teacher's checkpoint, or `base`; None: its head. A model may be its own teacher at a checkpoint."""
    hints: list[str | None] | None = None
    """Text of each input that the teacher reads before its first turn, and the model does not."""
    num_substeps: int = Field(default=1, ge=1)
    """Minimum number of passes per batch. It limits memory and never changes the gradient."""
    idempotency_key: IdempotencyKey | None = None
    """Idempotency key: a repeated request returns the first one's answer."""

    @model_validator(mode="after")
    def _hints_are_a_teachers(self) -> ForwardBackwardRequest:
        if self.hints is not None and (self.teacher is None or len(self.hints) != len(self.inputs)):
            raise ValueError("hints are for a teacher, one for each input")
        return self


class ForwardBackwardResult(Strict):
    """Metrics of a pass. Names carry their reduction: `loss:sum`, `entropy:mean`."""

    metrics: dict[str, float]
    num_datums: int


class LossRequest(_Batch):
    """Measure `cross_entropy` over a batch, without a gradient."""


class ForwardRequest(_Batch):
    """Compute logprobs for a custom loss, and store the context of `backward`."""


class TrainingDatum(Strict):
    """Origin of a datum. Several datums may share a trajectory."""

    reward: float
    traj_idx: int
    """Position of its trajectory among the inputs."""
    group_idx: int | None = None
    """Number of its group, in order of first appearance; None if the batch was not grouped."""


class DatumTensors(TrainingDatum):
    """A datum of a custom loss. The three lists have one entry for each token of the sequence."""

    logprobs: list[float]
    """Logprobs under the current policy, natural log; 0 for mask 0."""
    sampling_logprobs: list[float]
    """Logprobs under the policy that sampled; 0 for mask 0."""
    mask: list[float]
    """1.0 for sampled tokens, 0.0 for prompt tokens."""


class ForwardResult(Strict):
    """Logprobs of a batch; `forward_id` names the context that `backward` continues."""

    forward_id: str
    data: list[DatumTensors]


class BackwardRequest(Request):
    """Accumulate the gradient of -Σ w·logprob: `weights[d][t]` is -dC/dlogprob of the caller's loss C."""

    forward_id: str
    weights: list[list[float]]
    metrics: dict[str, float] = Field(default_factory=dict)
    idempotency_key: IdempotencyKey | None = None


class OptimStepRequest(Request):
    """Apply the accumulated gradient with AdamW, and append a checkpoint."""

    learning_rate: float = Field(gt=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Maximum gradient norm; a longer gradient is scaled down."""
    optimizer: OptimizerName = "adamw"
    """`muon`: hidden matrices by Muon, all other parameters by AdamW."""
    in_flight: bool = False
    """True: active turns continue with the new weights; False: they finish with the old ones."""
    save: bool = True
    """False: apply without a checkpoint. A later step's checkpoint includes this one; until then a crash loses it."""
    recoverable: bool = False
    """With `save=False`: keep the step on disk. After a crash, the next session of the model makes a checkpoint of it."""
    allow_empty: bool = False
    """Behaviour without an accumulated gradient. True: return the head, without paths; False: conflict."""
    measured_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Mean reward over all measured runs of the step, if the batches contain only some; None: over the batches' runs."""
    idempotency_key: IdempotencyKey | None = None


class OptimStepResult(Strict):
    """The checkpoint of a step; without one, the unchanged head, without paths."""

    step: int
    checkpoint_id: str
    sampler_path: str
    state_path: str
    model: str


class DiscardedGradient(Strict):
    """A gradient that was discarded without a step."""

    client: str
    """The client that accumulated it: process, machine and command."""
    passes: int
    """Number of calls of `forward_backward` and `backward`."""
    runs: int

    def __str__(self) -> str:
        passes = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        return f"{passes} over {self.runs} runs of {self.client}"


class OpenedSession(Strict):
    """Start of a training session."""

    model: str
    head: str | None
    """The parent checkpoint of the first step; None: the base."""
    step: int
    discarded: DiscardedGradient | None
    """The discarded gradient of another client."""


class StepResult(OptimStepResult):
    """Result of `TrainingClient.step`: checkpoint and groups. `str()` is a log line."""

    applied: bool
    """False: nothing was accumulated, the weights are unchanged, and `step` and `checkpoint_id` are the head's."""
    metrics: dict[str, float]
    """Metrics of the batch, as `ForwardBackwardResult.metrics`."""
    num_datums: int

    @property
    def reward(self) -> float | None:
        """Mean reward of the runs that count; None without any."""
        return self.metrics.get("reward:mean")

    @property
    def groups(self) -> int:
        """Number of groups of the batch."""
        return round(self.metrics.get("groups:sum", 0.0))

    @property
    def groups_with_signal(self) -> int:
        """Number of groups with signal: the others have no advantages."""
        return round(self.metrics.get("spread_groups:sum", 0.0))

    @property
    def failed_runs(self) -> int:
        """Number of runs with a failure that is not the agent's; see `AdvantageOptions.failed_runs`."""
        return round(self.metrics.get("failed_runs:sum", 0.0))

    def __str__(self) -> str:
        parts = []
        if self.reward is not None:
            parts.append(f"reward {self.reward:.3f}")
        if self.groups:
            many = "group" if self.groups == 1 else "groups"
            parts.append(f"{self.groups_with_signal} of {self.groups} {many} had signal")
        if self.failed_runs:
            parts.append(f"{self.failed_runs} failed {'run' if self.failed_runs == 1 else 'runs'}")
        if not self.applied:
            parts.append("nothing applied")
        return f"step {self.step}: {', '.join(parts) or 'applied'}"

    def _repr_html_(self) -> str:
        from hud.trace.notebook.html_table import table, titled

        rows = [("checkpoint", self.checkpoint_id), ("datums", self.num_datums)]
        metrics = [(name, f"{value:.6g}") for name, value in sorted(self.metrics.items())]
        return titled(str(self), table(("", ""), rows), table(("metric", "value"), metrics))


class LossesResult(Strict):
    """Names that `loss_fn` may take."""

    losses: list[str]


class CheckpointResponse(BaseModel):
    """A node of a model's checkpoint tree. At most one is active; without one, the base weights serve."""

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
    """Mean reward over all measured runs of the step; `metrics["trained_reward:mean"]` is over the trained runs."""
    learning_rate: float | None = None
    loss_fn: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
