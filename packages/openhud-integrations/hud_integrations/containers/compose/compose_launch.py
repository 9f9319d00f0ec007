"""`ComposeLaunch`: a workspace's container, and those of the services beside it.

Services have the main container's network: one loopback without a way out, to which all their names lead. Each container's
process 1 exits with the process that started it, so that a crash leaves none of them behind.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

from hud.environment.workspace.sandbox.launch import Launch
from hud_integrations.containers.compose.running_service import RunningService, Service
from hud_integrations.containers.container_launch import ContainerLaunch

_SERVICE_SECONDS = 60.0
"""Time for the start of each service, in addition to its health check."""


class ComposeLaunch(Launch):
    """A container with services, each started after those that it depends on."""

    def __init__(self, main: ContainerLaunch, services: Sequence[Service]) -> None:
        self._main, self._services = main, services
        self._running: list[RunningService] = []
        checks = (service.health_check for service in services)
        self.seconds = main.seconds + sum(_SERVICE_SECONDS + (0.0 if check is None else check.seconds) for check in checks)  # fmt: skip

    async def start(self) -> socket.socket:
        """Start all, and wait for health checks. Raises `EnvironmentFault` with the service that failed."""
        control = await self._main.start()
        self.process, self.user = self._main.process, self._main.user
        starting: dict[str, asyncio.Task[RunningService]] = {}
        try:
            for service in self._services:
                starting[service.name] = asyncio.ensure_future(self._begin(service, starting))
            await asyncio.gather(*starting.values())
            await asyncio.gather(*(service.settle() for service in self._running))
        except BaseException:
            control.close()
            for task in starting.values():
                task.cancel()
            await asyncio.gather(*starting.values(), return_exceptions=True)
            raise
        return control

    async def end(self) -> None:
        closing = [service.close() for service in self._running]
        for result in await asyncio.gather(self._main.end(), *closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    @property
    def ended_by_itself(self) -> bool:
        return self._main.ended_by_itself

    def memory_ran_out(self) -> bool:
        return self._main.memory_ran_out()

    async def _begin(
        self, service: Service, starting: Mapping[str, asyncio.Task[RunningService]]
    ) -> RunningService:
        """Start a service once the services that it depends on meet its conditions."""
        for name, condition in service.depends_on.items():
            if name in starting:  # The main service is up.
                await (await asyncio.shield(starting[name])).meet(condition)
        running = RunningService(service, self._main.network)
        self._running.append(running)
        await running.start()
        return running
