"""`BudgetedSettings`: the settings of commands that work within a budget and are judged on held-out tasks."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from hud.errors import UsageError
from hud.train.budgeted.budget import parse_budget
from hud.train.run_settings import ExperimentSettings

LIMITS = frozenset({"budget", "hour_price", "max_concurrent", "rollout_timeout"})
"""Settings of execution and length."""
_PLAYING = ("max_turns", "max_tokens", "runtime", "max_concurrent", "rollout_timeout", "seed")


class BudgetedSettings(ExperimentSettings):
    """Settings of a prompt search or an improvement."""

    changeable: ClassVar[frozenset[str]] = LIMITS

    budget: str
    """Most money, time or rollouts, such as 5usd, 2h or 1000rollouts; several with commas."""
    hour_price: float | None = Field(default=None, gt=0)
    """Dollars for an hour of this machine; a budget of money needs it for a model that is sampled here."""
    held_out: list[str] = Field(default_factory=list)
    """Held-out tasks that judge the result: files, folders, or `benchmark:NAME`."""
    held_out_share: float = Field(default=0.4, gt=0, lt=1)
    """Without held-out tasks: share of the tasks that is held out, chosen by the seed."""
    eval_group: int = Field(default=5, ge=1)
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
    def shared(self) -> dict[str, Any]:
        """Settings of rollouts, which every run of the command has."""
        return {name: getattr(self, name) for name in _PLAYING}

    def refuse_unusable(self, model: dict[str, Any]) -> None:
        """Raise `UsageError` for a provider's model, and for a budget of money without the price of this machine."""
        if not model["is_trainable"]:
            raise UsageError(
                f"{self.model!r} lives with its provider: there is no tree here that could hold its prompt or weights. Register its "
                "weights, or name it as the --reflector of another model."
            )
        if parse_budget(self.budget).usd is not None and self.hour_price is None:
            raise UsageError(
                f"{self.model!r} is sampled here, so a budget of money needs the price of this machine: --hour-price 0.5. Or give "
                "a budget of time or rollouts."
            )
