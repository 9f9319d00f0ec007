"""`RunningService`: a service of a Compose file, in a container of its own with the network of the main service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from hud.environment.workspace.files.transfer import copy_in
from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.commands import run_inside
from hud.environment.workspace.sandbox.pipes import Outgoing
from hud.environment.workspace.sandbox.sandbox import Process, Sandbox
from hud.environment.workspace.sandbox.scripts import script
from hud.errors import EnvironmentFault
from hud.eval.runtimes.containers.health_check import HealthCheck
from hud.graders.command import CommandOutcome
from hud_integrations.containers.compose.compose_file import Condition, Restart
from hud_integrations.containers.container_image import EngineImage

_KEPT_BYTES = 2000
_RESTART_SECONDS = 1.0
_COPY_SECONDS = 60.0


@dataclass(frozen=True)
class Service:
    """A service that can be started."""

    name: str
    plan: Plan
    argv: tuple[str, ...]
    depends_on: Mapping[str, Condition]
    health_check: HealthCheck | None
    restart: Restart
    copies: tuple[tuple[Path, str], ...] = ()
    """Files and folders of this machine, and where they are copied to before the start."""
    folders: tuple[str, ...] = ()
    """Folders that are made if its image has none."""


class RunningService:
    """A service with the network of another container; to be closed with `close`, also after a failed start."""

    def __init__(self, service: Service, network: str) -> None:
        self._service = service
        image = replace(cast("EngineImage", service.plan.image), network=network)
        self._sandbox = Sandbox(replace(service.plan, image=image))
        self._output = b""
        self._outputs: list[Outgoing] = []
        self._life: asyncio.Task[int] | None = None
        self._health: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it. Raises `EnvironmentFault` with its name."""
        try:
            await self._sandbox.start()
            for folder in self._service.folders:
                made = self._sandbox.plan.program(script("files", "folder", folder))
                await run_inside(self._sandbox, made, seconds=_COPY_SECONDS, kept_bytes=_KEPT_BYTES)
            for source, target in self._service.copies:
                await copy_in(self._sandbox, str(source), target)
            process = await self._spawn()
        except (EnvironmentFault, OSError) as error:
            raise self._fault(str(error)) from error
        self._life = asyncio.ensure_future(self._live(process))
        self._health = asyncio.ensure_future(self._wait_until_healthy())

    async def meet(self, condition: Condition) -> None:
        """Wait until it meets a condition of another service. Raises `EnvironmentFault` if it never does."""
        assert self._life is not None
        assert self._health is not None
        if condition == "service_healthy":
            await asyncio.shield(self._health)
        elif condition == "service_completed_successfully":
            status = await asyncio.shield(self._life)
            if status != 0:
                raise self._ended(status)

    async def settle(self) -> None:
        """Wait for its health check, if it has one. Raises `EnvironmentFault` if it stays unhealthy, or failed."""
        assert self._life is not None
        await self.meet("service_healthy")
        if self._life.done() and self._life.result() != 0:
            raise self._ended(self._life.result())

    async def close(self) -> None:
        """Kill it, and remove its container."""
        for task in (self._life, self._health):
            if task is not None:
                task.cancel()
        for output in self._outputs:
            output.close()
        await self._sandbox.close()

    async def _spawn(self) -> Process:
        """Start its command, found by its own `PATH`, with its output kept for messages."""
        reading, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            self._outputs.append(await Outgoing.read(reading, self._take))
            return await self._sandbox.spawn(
                self._by_search_path(self._service.argv), (nothing, writing, writing)
            )
        finally:
            os.close(writing)
            os.close(nothing)

    def _by_search_path(self, argv: Sequence[str]) -> list[str]:
        return self._sandbox.plan.program(["/usr/bin/env", "--", *argv])

    def _take(self, chunk: bytes) -> None:
        self._output = (self._output + chunk)[-_KEPT_BYTES:]

    async def _live(self, process: Process) -> int:
        """Return its last exit status, after restarts; below 0: the signal that killed it."""
        while True:
            status = await process.wait()
            restarts = self._service.restart == "always" or (
                self._service.restart == "on-failure" and status != 0
            )
            if not restarts or self._sandbox.problem is not None:
                return status
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                process = await self._spawn()
            except OSError:
                return status  # Its container ended meanwhile.

    async def _wait_until_healthy(self) -> None:
        check = self._service.health_check
        if check is None:
            return
        assert self._life is not None
        checking = asyncio.ensure_future(check.wait(self._check))
        try:
            await asyncio.wait((checking, self._life), return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                raise self._ended(self._life.result())
            try:
                checking.result()
            except EnvironmentFault as fault:
                raise self._fault(str(fault)) from None
        finally:
            checking.cancel()

    async def _check(self, argv: Sequence[str], seconds: float) -> CommandOutcome:
        return await run_inside(
            self._sandbox,
            self._by_search_path(argv),
            seconds=seconds,
            kept_bytes=_KEPT_BYTES,
            variables=self._sandbox.plan.variables,
        )

    def _ended(self, status: int) -> EnvironmentFault:
        lines = self._output.decode("utf-8", "replace").strip().splitlines()
        return self._fault(f"it ended with status {status}: {lines[-1] if lines else 'no output'}")

    def _fault(self, problem: str) -> EnvironmentFault:
        return EnvironmentFault(f"Service {self._service.name!r}: {problem}")
