"""`ImproveConfig`: the configuration of an improvement."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hud.errors import UsageError
from hud.train.config import TrainConfig

RungName = Literal["prompt", "imitate", "distil", "reinforce"]
RUNGS: tuple[RungName, ...] = ("prompt", "imitate", "distil", "reinforce")
"""Rungs in the order in which they are climbed: from the cheapest change to the dearest."""
# Settings of execution and length: changing them continues the same improvement.
_NOT_THE_EXPERIMENT = frozenset({"budget", "hour_price", "max_concurrent", "rollout_timeout"})


class ImproveConfig(BaseModel):
    """An improvement of a policy within a budget."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: str
    """Slug or id of the model."""
    tasks: str = ""
    """Training tasks: a file or folder. Python callers may pass a Taskset."""
    budget: str
    """Most money, time or rollouts of all rungs together, such as 5usd, 2h or 5000rollouts; several with commas."""
    hour_price: float | None = Field(default=None, gt=0)
    """Dollars for an hour of this machine; a budget of money needs it for a model that is sampled here."""
    held_out: list[str] = Field(default_factory=list)
    """Held-out tasks that judge every rung: files, folders, or `benchmark:NAME`."""
    held_out_share: float = Field(default=0.4, gt=0, lt=1)
    """Without held-out tasks: share of the tasks that is held out, chosen by the seed."""
    skip: list[RungName] = Field(default_factory=list)
    """Rungs that are not climbed: prompt, imitate, distil, reinforce."""
    reflector: str | None = None
    """Model that proposes prompts; None: the prompt is not searched."""
    teacher: str | None = None
    """Model with the same tokenizer to distil from; None: no distillation."""
    against: list[str] = Field(default_factory=list)
    """Models whose rewards on the measured tasks show the headroom."""
    measured_tasks: int = Field(default=32, ge=2)
    """Most training tasks on which the policy is measured."""
    group: int = Field(default=8, ge=2)
    """Runs of each measured task, and of each task in a step of reinforcement."""
    tasks_per_step: int = Field(default=4, ge=1)
    """Tasks of a step of distillation and reinforcement."""
    steps_at_once: int = Field(default=8, ge=1)
    """Steps after which it is decided whether the rung goes on."""
    epochs: int = Field(default=3, ge=1)
    """Passes over the imitated runs."""
    lr: float | None = Field(default=None, gt=0)
    """Learning rate of distillation and reinforcement; None: the default of `hud train`."""
    imitation_lr: float | None = Field(default=None, gt=0)
    """Learning rate of imitation; None: the default of `hud train --from`."""
    eval_group: int = Field(default=3, ge=1)
    """Runs of each held-out task, for each comparison."""
    min_gain: float = Field(default=0.0, ge=0)
    """Gain of mean held-out reward to exceed."""
    max_turns: int = Field(default=10, ge=1)
    """Maximum model calls of a run."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum tokens of a turn."""
    runtime: str = "local"
    """`local` (in this process), `fork`, `subprocess` or `tcp://host:port`."""
    max_concurrent: int = Field(default=64, ge=1)
    """Concurrent rollouts."""
    rollout_timeout: float = Field(default=600.0, gt=0)
    """Seconds."""
    seed: int = 0
    """Seed of every random choice."""

    @property
    def rungs(self) -> list[RungName]:
        """The rungs that may be climbed, in order."""
        absent = {"prompt"} if self.reflector is None else set()
        absent |= {"distil"} if self.teacher is None else set()
        return [rung for rung in RUNGS if rung not in absent and rung not in self.skip]

    @property
    def step_rollouts(self) -> int:
        """Rollouts of a step of reinforcement."""
        return self.tasks_per_step * self.group

    def playing(self, model: str) -> TrainConfig:
        """The settings of rollouts with a model."""
        return TrainConfig(model=model, eval_group=self.eval_group, **self.shared)

    @property
    def shared(self) -> dict[str, Any]:
        """Settings that all rungs have."""
        names = ("max_turns", "max_tokens", "runtime", "max_concurrent", "rollout_timeout", "seed")
        return {name: getattr(self, name) for name in names}

    def fingerprint(self, *data: str) -> str:
        """Return a digest, equal for configurations of the same improvement on the same data."""
        content = self.model_dump_json(exclude=set(_NOT_THE_EXPERIMENT)) + "\n".join(data)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def make_improve_config(values: dict[str, Any]) -> ImproveConfig:
    """Return a validated configuration; raises `UsageError` with the first error."""
    try:
        return ImproveConfig(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        name = "".join(f"{part}: " for part in problem["loc"])
        raise UsageError(f"The improvement: {name}{problem['msg']}.") from None
