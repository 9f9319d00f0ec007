"""The model of a program's run: a pass that names the run, with which every model call of the program reaches that model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hud.agents.agent_kinds import kind_of_model
from hud.client import connect
from hud.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from hud.agents.agent import RunView
    from hud.agents.programs.program_settings import OwnLoopConfig


@dataclass(frozen=True)
class RunModel:
    """Model, sampling and limits of an agent's runs."""

    agent: str
    """Name of the agent, for messages."""
    model: str
    checkpoint: str | None
    sampling: dict[str, Any]
    limits: dict[str, int]
    trainable: bool = False
    """True if settings of the program that leave nothing to train on are overridden, too."""
    seed_of: Callable[[RunView], int] | None = None
    """Seed of a run; None: its calls have no seeds."""

    @classmethod
    def of(cls, agent: str, config: OwnLoopConfig) -> RunModel:
        limits = {"calls": config.most_calls, "tokens": config.total_tokens}
        return cls(
            agent,
            config.model,
            config.checkpoint,
            dict(config.completion_kwargs),
            {name: most for name, most in limits.items() if most is not None},
        )

    def trained(self, seed_of: Callable[[RunView], int]) -> RunModel:
        """Return the same for runs that are trained on, with seeds."""
        return replace(self, trainable=True, seed_of=seed_of)

    async def check(self) -> None:
        """Raise `UsageError` for a model that there is not."""
        if not self.model:
            raise UsageError(
                f"{self.agent} needs --model: the name of a model of yours (hud models list), or of a provider."
            )
        if self.model.startswith(("http://", "https://")):
            raise UsageError(
                f"{self.agent} asks its model through the gateway, so {self.model} needs a name: hud models add."
            )
        try:
            await connect().get("/v2/models/resolve", params={"model": self.model})
        except NotFoundError:
            if kind_of_model(self.model) is None:
                raise

    @asynccontextmanager
    async def open(self, run: RunView) -> AsyncIterator[ModelAccess]:
        """Open the pass of a run; at its end the run's trace has the steps, and model calls are refused."""
        from hud.client.run_pass import RunLimits, run_pass

        seeds = {} if self.seed_of is None else {"seed": self.seed_of(run)}
        async with run_pass(
            run,
            model=self.model,
            checkpoint=self.checkpoint,
            sampling={**self.sampling, **seeds},
            limits=RunLimits(**self.limits),
            trainable=self.trainable,
        ) as access:
            yield ModelAccess(access.base_url, access.key)


@dataclass(frozen=True)
class ModelAccess:
    """Address and key with which a run's model calls are made."""

    server: str
    """Root of the paths of all dialects."""
    key: str
