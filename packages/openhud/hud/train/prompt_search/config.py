"""`PromptSearchConfig`: the configuration of a search of a system prompt."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hud.train.budgeted.settings import LIMITS, BudgetedSettings
from hud.train.config import TrainConfig


class PromptSearchConfig(BudgetedSettings):
    """A search of a system prompt."""

    changeable: ClassVar[frozenset[str]] = LIMITS | {"min_gain", "patience"}

    budget: str = "1000rollouts"
    """Most money, time or rollouts, such as 5usd, 2h or 1000rollouts; several with commas."""
    reflector: str | None = None
    """Model that proposes prompts: a slug, http://HOST/v1 of a server, or path.py:policy. None: the model itself."""
    minibatch: int = Field(default=4, ge=1)
    """Training tasks that a proposal is made from and tried on."""
    validation: int = Field(default=24, ge=2)
    """Most training tasks on which each accepted prompt is scored."""
    patience: int = Field(default=12, ge=1)
    """Iterations in a row without an accepted proposal after which the search ends."""
    shuffle_rewards: bool = False
    """Null run: rewards change places among the runs and the prompts of a task, and the graders' texts are left out. Nothing is to
    be learned."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of the model."""

    @property
    def playing(self) -> TrainConfig:
        """The settings of rollouts."""
        return TrainConfig(
            model=self.model,
            eval_group=self.eval_group,
            temperature=self.temperature,
            eval_temperature=self.temperature,
            **self.shared,
        )


def make_search_config(values: dict[str, Any]) -> PromptSearchConfig:
    """Return a validated configuration; raises `UsageError` with the first problem."""
    return PromptSearchConfig.checked(values, "The prompt search")
