"""`ExperimentSettings`: settings with an identity. `RunSettings`: those of every training run: optimizer, playing, held-out scores, records."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from hud.errors import UsageError
from hud.learning.schedules import ScheduleName, learning_rate
from hud.learning.wire_types import OptimizerName
from hud.trace import ReasoningEffort
from hud.train.monitoring.alarms import Bands

# Settings of execution, display, storage and length: changing them continues the same run.
_NOT_THE_EXPERIMENT = frozenset(
    {
        "backend",
        "keep",
        "keep_every",
        "max_concurrent",
        "rollout_timeout",
        "metrics_file",
        "plot",
        "profile",
        "engine_process",
        "track",
        "promote",
        "min_gain",
        "max_regression",
        "critical",
        "steps",
        "epochs",
        "test",
        "guard",
        *(f"guard_{band.name}" for band in fields(Bands)),
    }
)


class ExperimentSettings(BaseModel):
    """Settings of a command that a repeated call continues: equal fingerprints are the same experiment."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    changeable: ClassVar[frozenset[str]]
    """Settings of which a change continues the same experiment."""

    _data: str = PrivateAttr(default="")
    """Digest of the data that no setting names."""

    model: str
    """Slug or id of the model."""
    tasks: str = ""
    """Tasks: a file or folder that `Taskset.from_file` reads. Python callers may pass a Taskset."""

    def on(self, *data: str) -> Self:
        """Return a copy whose fingerprint depends on the data, too: tasks or runs that no setting names."""
        copied = self.model_copy()
        copied._data = hashlib.sha256("\n".join(data).encode()).hexdigest()
        return copied

    @property
    def fingerprint(self) -> str:
        """Return a digest, equal for configurations of the same experiment, however long."""
        content = self.model_dump_json(exclude=set(self.changeable)) + self._data
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @classmethod
    def checked(cls, values: dict[str, Any], where: str) -> Self:
        """Return validated settings; raises `UsageError`, with the first problem, which begins with `where`."""
        try:
            return cls(**values)
        except ValidationError as error:
            problem = error.errors()[0]
            name = "".join(f"{part}: " for part in problem["loc"])
            raise UsageError(f"{where}: {name}{problem['msg']}.") from None


class RunSettings(ExperimentSettings):
    """Settings of a training run, by reward or supervised."""

    changeable: ClassVar[frozenset[str]] = _NOT_THE_EXPERIMENT
    empty_steps: ClassVar[bool] = True
    """True if a step may leave the weights as they are; it then has no checkpoint."""

    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate. Default: by what is trained and its size; 1e-4 for tiny models and small adapters, 1e-5 for small full ones."""
    lr_schedule: ScheduleName = "constant"
    """Shape of the learning rate over the steps."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises to its peak."""
    lr_floor: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of a decaying schedule, as a fraction of the peak."""
    optimizer: OptimizerName = "adamw"
    """`adamw`, or `muon`: hidden matrices by Muon, with steps of AdamW's length, and all other parameters by AdamW."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW: decay rate of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW: decay rate of the second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW: epsilon of the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW: decoupled weight decay."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Maximum gradient norm; a longer gradient is scaled down."""

    max_turns: int = Field(default=10, ge=1)
    """Maximum model calls of a run."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum tokens of a turn."""
    system_prompt: str | None = None
    """System prompt of the policy."""
    reasoning_effort: ReasoningEffort | None = None
    """Reasoning effort of the policy, passed to its chat template; None: the template's default."""

    runtime: str = "local"
    """`local` (in this process), `fork`, `subprocess`, `hosted` (the platform's fleet), `tcp://host:port`, or an installed kind."""
    max_concurrent: int = Field(default=64, ge=1)
    """Concurrent rollouts."""
    rollout_timeout: float = Field(default=600.0, gt=0)
    """Seconds."""

    held_out: list[str] = Field(default_factory=list)
    """Held-out tasks, scored before, during and after training: files, folders, or `benchmark:NAME` for the held-out split
    of a benchmark. Each is a set with its own score."""
    eval_every: int = Field(default=10, ge=0)
    """Steps between held-out scores; 0: before and after training only."""
    eval_group: int = Field(default=1, ge=1)
    """Runs of each held-out task. Default with `promote = "gate"`: 5."""
    eval_temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of held-out scores; 0: greedy."""

    guard: Literal["off", "warn", "stop"] = "warn"
    """At signs that the reward is gamed or the policy collapses: nothing, a warning, or a pause of the run that `--override-guard`
    ends."""

    seed: int = 0
    """Seed of the sampling of tasks and tokens."""
    keep: Annotated[int, Field(ge=1)] | Literal["all"] = 8
    """Number of newest checkpoints whose files are kept, or all. Always kept: the head, the best held-out one, every
    `keep_every`-th, named ones (`hud models name`) and those that forks need."""
    keep_every: int | None = Field(default=None, ge=1)
    """Steps between permanently kept checkpoints. None: 10, or a twentieth of the run if that is more."""
    metrics_file: str | None = None
    """JSONL file of every step's metrics; None: in the run's folder under HUD_HOME."""
    track: list[str] = Field(default_factory=list)
    """Experiment trackers that steps and held-out scores are logged to (docs/integrations/trackers.md)."""
    plot: str | None = None
    """PNG file of the curves; None: in the run's folder under HUD_HOME."""

    @field_validator("held_out", "track", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, str) else value

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the run."""
        raise NotImplementedError

    @property
    def loss_arguments(self) -> dict[str, Any]:
        """Arguments of `TrainingClient.forward_backward`."""
        raise NotImplementedError

    @property
    def updates_in_flight(self) -> bool:
        """True if active turns continue with new weights."""
        return False

    @property
    def kept_every(self) -> int | None:
        """Steps between permanently kept checkpoints; None: none are."""
        return self.keep_every

    def progress_of(self, step: int) -> float:
        """Return the completed share of the training before a step, 0 to 1; steps count from 0."""
        return min(step / max(self.total_steps, 1), 1.0)

    def learning_rate_of(self, step: int) -> float:
        """Return the learning rate of a step; steps count from 0."""
        return learning_rate(
            self.lr,
            step,
            schedule=self.lr_schedule,
            # One more step than there are: a rate of 0 in the last step would waste it, and is rejected.
            total_steps=self.total_steps + 1,
            warmup=self.warmup_steps,
            floor=self.lr_floor,
        )
