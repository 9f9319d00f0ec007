"""`ImproveConfig`: the configuration of an improvement."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hud.train.budgeted.settings import BudgetedSettings
from hud.train.config import TrainConfig

RungName = Literal["prompt", "imitate", "distil", "reinforce"]
RUNGS: tuple[RungName, ...] = ("prompt", "imitate", "distil", "reinforce")
"""Rungs in the order in which they are climbed: from the cheapest change to the dearest."""


class ImproveConfig(BudgetedSettings):
    """An improvement of a policy within a budget."""

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


def make_improve_config(values: dict[str, Any]) -> ImproveConfig:
    """Return a validated configuration; raises `UsageError` with the first problem."""
    return ImproveConfig.checked(values, "The improvement")
