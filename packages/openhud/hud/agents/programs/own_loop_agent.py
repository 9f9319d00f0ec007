"""Agents with a tool loop of their own: a run is theirs from its pass to their end, within their time limit."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING

from hud.agents.agent import Agent, RunView
from hud.agents.programs.run_model import ModelAccess, RunModel

if TYPE_CHECKING:
    from hud.agents.programs.program_settings import OwnLoopConfig


def refusal_by_platform(name: str) -> str:
    """Return the reason why the platform's workers do not play an agent of this class, and the cure."""
    return (
        f"The platform does not play {name}: programs and agents behind HTTP are installed on their own machine, or reached from it "
        "alone. Play them there, without --remote (in Python without HostedRuntime); the platform's models are theirs, too."
    )


class OwnLoopAgent(Agent):
    """An agent that asks its run's model by itself."""

    config: OwnLoopConfig

    def __init__(self, config: OwnLoopConfig, name: str) -> None:
        """`name`: its name in messages."""
        self.config, self.name = config, name
        self.model = RunModel.of(name, config)

    @property
    def model_name(self) -> str | None:
        return self.config.model_name or self.config.model or None

    async def prepare(self) -> None:
        """Raise `UsageError` for a model that there is not."""
        await self.model.check()

    async def __call__(self, run: RunView) -> None:
        limit = asyncio.timeout(self.config.timeout_seconds)
        async with self.model.open(run) as access:
            try:
                async with limit:
                    await self._play(run, access)
            except TimeoutError:
                if not limit.expired():
                    raise
                run.trace.stop_reason = "timeout"
        if run.trace.stop_reason is None:
            run.trace.stop_reason = "done"

    @abstractmethod
    async def _play(self, run: RunView, access: ModelAccess) -> None:
        """Play a run to its end, and set the trace's answer."""
