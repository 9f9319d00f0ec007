"""`DashboardState`: what the pages of one platform keep in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends

from hud_dashboard.human_baseline.session_registry import SessionRegistry
from hud_dashboard.launching.launcher import Launches
from hud_dashboard.playground_environments import Worlds
from hud_platform.dependencies import service_part
from hud_platform.parts import Parts
from hud_platform.process.background import Service


class DashboardState(Service):
    """Processes and environments that pages started; they end with the server."""

    def __init__(self, parts: Parts) -> None:
        self.launches = Launches(parts.config, parts.store, parts.passes, parts.stopping)
        self.worlds = Worlds(parts.store, parts.stopping, own_machine=not parts.config.keys)
        self.baseline_sessions = SessionRegistry(parts.store, parts.stopping)

    async def work(self) -> None:
        """Run the work of each until the server stops."""
        async with asyncio.TaskGroup() as group:
            for component in (self.launches, self.worlds, self.baseline_sessions):
                group.create_task(component.work())


StatePart = Annotated[DashboardState, service_part("dashboard")]


def state_part(choose: Callable[[DashboardState], object]) -> Any:
    """Return a dependency on a part of the state."""

    async def chosen(state: StatePart) -> object:
        return choose(state)

    return Depends(chosen)
