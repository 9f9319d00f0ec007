"""The container orchestrator of one machine: each service is a process with a release, settings and a limit.

It starts, replaces, restarts and evicts; it kills what uses more memory than it may. What it does is written into
the recording, as a real one's API would tell it.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any

import httpx
import psutil

from hud_benchmarks.incident_lab.lab.recording import Recording, clock

SHOP = Path(__file__).parents[1] / "shop"
MEMORY_LIMIT = 176 * 2**20
READY_SECONDS = 60.0
LONGEST_BACK_OFF = 6.0
LETTERS = "bcdfghjklmnpqrstvwxz2456789"

DYING_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Prefix of commands: a container ends with this process."""


class LabError(Exception):
    """The lab itself does not work."""


def free_port() -> int:
    """Return a port of the loopback address that nobody has."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Service:
    """A desired service: one container of a release, with these settings."""

    name: str
    command: list[str]
    variables: dict[str, str]
    port: int
    release: str = ""
    image: Path | None = None
    tls: bool = False
    memory_limit: int = MEMORY_LIMIT
    container: Container | None = None
    past: list[Container] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Address for the other services."""
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"


@dataclass
class Container:
    """One container: a name of its own, and a process that is started again when it ends."""

    name: str
    log: Path
    process: asyncio.subprocess.Process | None = None
    state: str = "Pending"
    reason: str = ""
    exit_code: int | None = None
    last_reason: str = ""
    restarts: int = 0
    created: float = field(default_factory=time)
    started: float = 0.0
    again_at: float = 0.0


class Cluster:
    """All services of one incident. `settings` are the variables that every container gets."""

    def __init__(
        self, folder: Path, recording: Recording, luck: random.Random, settings: dict[str, str]
    ) -> None:
        self.folder = folder
        self.recording = recording
        self.luck = luck
        self.settings = settings
        self.names: dict[str, str] = {}
        """Names of this incident, by the names in the shop's code."""
        self.services: dict[str, Service] = {}

    def declare(self, service: Service) -> None:
        """Make a service known, so that others can be told where it will be."""
        self.services[service.name] = service

    def build(self, service: str, release: str, change: tuple[str, str] | None = None) -> Path:
        """Make the image of a release: the shop's code, with one piece of the service's own replaced."""
        image = self.folder / "images" / f"{service}-{release}"
        shutil.copytree(SHOP, image / "shop", ignore=shutil.ignore_patterns("__pycache__"))
        file = image / "shop" / f"{service}.py"
        code = file.read_text()
        if change is not None:
            before, after = change
            if code.count(before) != 1:
                raise LabError(f"{before!r} does not stand once in {file.name}.")
            code = code.replace(before, after)
        for name, here in self.names.items():
            code = code.replace(name, here)
        file.write_text(code)
        return image

    async def start(self, name: str, why: str = "Scaled up replica set") -> None:
        """Start a new container of a service, in place of the one it has."""
        service = self.services[name]
        await self.stop(name)
        suffix = (
            "".join(self.luck.choices(LETTERS, k=10))
            + "-"
            + "".join(self.luck.choices(LETTERS, k=5))
        )
        (self.folder / "logs").mkdir(exist_ok=True)
        container = Container(f"{name}-{suffix}", self.folder / "logs" / f"{name}-{suffix}.log")
        service.container = container
        self.event("Normal", "ScalingReplicaSet", name, f"{why} {name}-{suffix[:10]} to 1")
        self.event("Normal", "Scheduled", container.name, "Assigned to node-1")
        await self._spawn(service, container)

    async def stop(self, name: str) -> None:
        """End a service's container, if it has one."""
        service = self.services[name]
        container, service.container = service.container, None
        if container is None:
            return
        self.event("Normal", "Killing", container.name, f"Stopping container {name}")
        container.state, container.reason = "Terminated", "Completed"
        service.past.append(container)
        await _ended(container.process)

    async def evict(self, name: str, reason: str) -> None:
        """Kill a service's container for good, as a node does that runs out of something."""
        container = self.services[name].container
        assert container is not None
        container.state, container.reason = "Failed", "Evicted"
        self.event("Warning", "Evicted", container.name, reason)
        self.event("Warning", "FailedScheduling", container.name, "0/1 nodes are available")
        await _ended(container.process)

    async def ready(self, name: str) -> None:
        """Wait until a service answers. Raises `LabError` where it does not."""
        service = self.services[name]
        trusted = ssl.create_default_context(cafile=self.settings["CA_FILE"])
        deadline = time() + READY_SECONDS
        async with httpx.AsyncClient(verify=trusted, timeout=5) as client:
            while time() < deadline:
                try:
                    if (await client.get(f"{service.url}/healthz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    await asyncio.sleep(0.2)
        container = service.container
        log = container.log.read_text()[-2000:] if container is not None else "no container"
        raise LabError(f"{name} did not get ready:\n{log}")

    async def watch(self) -> None:
        """Restart what ends and kill what uses too much memory, until cancelled."""
        while True:
            for service in list(self.services.values()):
                if service.container is not None and service.container.state != "Failed":
                    await self._look_after(service, service.container)
            await asyncio.sleep(0.4)

    async def end(self) -> None:
        """End everything."""
        for service in self.services.values():
            if service.container is not None:
                await _ended(service.container.process)

    def event(self, kind: str, reason: str, about: str, message: str) -> None:
        """Write down that something happened to a container or a service."""
        self.recording.add(
            "k8s_events", time=clock(), type=kind, reason=reason, object=about, message=message
        )

    async def _look_after(self, service: Service, container: Container) -> None:
        process = container.process
        assert process is not None
        if process.returncode is None:
            if _memory(process.pid) > service.memory_limit:
                container.reason = "OOMKilled"
                process.kill()
                await process.wait()
            elif container.state == "Waiting":
                container.state, container.reason = "Running", ""
            return
        if container.state == "Running":
            reason = container.reason or "Error"
            container.exit_code, container.last_reason = process.returncode % 128, reason
            if reason == "OOMKilled":
                container.exit_code = 137
                self.event(
                    "Warning",
                    "OOMKilling",
                    container.name,
                    f"Memory limit of {service.name} reached",
                )
            container.restarts += 1
            wait = min(LONGEST_BACK_OFF, 0.5 * 2 ** min(container.restarts, 8))
            container.state, container.reason = "Waiting", "CrashLoopBackOff"
            container.again_at = time() + wait
            self.event(
                "Warning",
                "BackOff",
                container.name,
                f"Back-off restarting failed container {service.name}",
            )
        elif time() >= container.again_at:
            await self._spawn(service, container)

    async def _spawn(self, service: Service, container: Container) -> None:
        if shutil.which(service.command[0]) is None:
            raise LabError(
                f"{service.command[0]} is not installed; scripts/setup-worlds installs it."
            )
        image = str(service.image) if service.image is not None else str(self.folder)
        urls = {f"{other.name.upper()}_URL": other.url for other in self.services.values()}
        variables: dict[str, str] = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            **self.settings,
            **urls,
            **service.variables,
            "PYTHONPATH": image,
            "PYTHONUNBUFFERED": "1",
            "RELEASE": service.release,
            "CONTAINER": container.name,
            "PORT": str(service.port),
        }
        with container.log.open("ab") as log:
            container.process = await asyncio.create_subprocess_exec(
                *DYING_WITH_US,
                *service.command,
                cwd=image,
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        container.state, container.reason, container.started = "Running", "", time()
        self.event("Normal", "Started", container.name, f"Started container {service.name}")


def python_service(name: str, **more: Any) -> Service:
    """Return one of the shop's own services."""
    return Service(
        name=name, command=[sys.executable, "-m", f"shop.{name}"], port=free_port(), **more
    )


async def _ended(process: asyncio.subprocess.Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 4)
    except TimeoutError:
        process.kill()
        await process.wait()


def _memory(pid: int) -> int:
    try:
        size: int = psutil.Process(pid).memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return size
