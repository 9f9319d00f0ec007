"""`ContainerRuntime`: a container of docker or podman for each rollout, whose image serves the environment."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hud.client.archives import pack
from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.environment.spares import Spares
from hud.environment.templates.runtime_config import RuntimeResources, refuse_unsupported
from hud.errors import UsageError
from hud.eval.runtimes.containers.contained_environment import (
    READY_SECONDS,
    contained_environment,
)
from hud.eval.runtimes.containers.container import ContainerSpec
from hud.eval.runtimes.containers.container_engine import find_container_engine, last_line
from hud.eval.runtimes.containers.images import build_command, has_image
from hud.eval.runtimes.rollout_runtime import RolloutRuntime
from hud.eval.runtimes.source_path import path_of

if TYPE_CHECKING:
    from hud.environment import Environment, Task

DOCKERFILE = "Dockerfile.hud"
_Started = tuple[RemoteConnection, AsyncExitStack]
"""Connection to a started container's environment, and what closes both."""


class ContainerRuntime(RolloutRuntime):
    """A container for each rollout; its image's CMD serves the environment on port 8765.

    The image is the task's `runtime_config.image`, else `image`, else it is built from the `Dockerfile.hud` in the folder of
    `source`, once for each content. `resources.cpu` and `resources.memory_mb` of the task are limits, at most `processors` and
    `memory_mb`. `mounts` are read-only files of this machine, by path inside. With `network="none"`, `allowed_hosts` are web hosts
    that a proxy reaches. `spares` containers of each image are up before a rollout needs them, from the first one on.
    """

    def __init__(
        self,
        source: str | Path | Environment | None = None,
        *,
        image: str | None = None,
        variables: Mapping[str, str] | None = None,
        processors: float | None = None,
        memory_mb: float | None = None,
        processes: int | None = None,
        network: Literal["all", "none"] = "all",
        allowed_hosts: Sequence[str] | None = None,
        mounts: Mapping[str, str | Path] | None = None,
        spares: int = 0,
    ) -> None:
        self.image = image
        self.spares = spares
        self._pools: dict[Any, Spares[_Started]] = {}
        self.folder = None if source is None else Path(path_of(source).partition(":")[0]).parent
        self.limits = ContainerSpec(
            "",
            variables=variables or {},
            processors=processors,
            memory_mb=memory_mb,
            processes=processes,
            network=network,
            mounts=mounts or {},
            allowed_hosts=allowed_hosts,
        )
        self._building = asyncio.Lock()

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Start a container and connect; it is removed at the end."""
        config = refuse_unsupported(
            *(task.slug, task.runtime_config, "ContainerRuntime", ["cpu", "memory_mb", "gpu"]),
            images=True,
        )
        image = config.image or self.image or await self._built(task.slug)
        resources, limits = config.resources or RuntimeResources(), self.limits
        spec = ContainerSpec(
            image,
            variables=limits.variables,
            processors=_least(limits.processors, resources.cpu),
            memory_mb=_least(limits.memory_mb, resources.memory_mb),
            processes=limits.processes,
            gpus=_gpus(task.slug, resources),
            network=limits.network,
            mounts=limits.mounts,
            allowed_hosts=limits.allowed_hosts,
        )
        startup = config.limits.startup_timeout_s if config.limits is not None else None
        pool = self._pool(spec, startup or READY_SECONDS)
        connection, stack = await pool.take()
        async with stack:
            yield connection

    async def aclose(self) -> None:
        """Remove the containers that no rollout took."""
        for pool in self._pools.values():
            await pool.close()
        self._pools.clear()

    def _pool(self, spec: ContainerSpec, seconds: float) -> Spares[_Started]:
        """Return the containers of a specification that are started ahead."""

        async def start() -> _Started:
            async with AsyncExitStack() as stack:
                contained = contained_environment(spec, seconds)
                return await stack.enter_async_context(contained), stack.pop_all()

        key = (spec.image, spec.processors, spec.memory_mb, spec.gpus, seconds)
        if key not in self._pools:
            self._pools[key] = Spares(
                start,
                lambda started: started[1].aclose(),
                lambda started: not started[0].is_lost,
                self.spares,
            )
        return self._pools[key]

    async def _built(self, slug: str) -> str:
        """Return the image of the source's folder, built if the engine has none of this content."""
        if self.folder is None or not (self.folder / DOCKERFILE).is_file():
            raise UsageError(
                f"Task {slug!r} has no image: name one in its runtime_config, or write a {DOCKERFILE} beside its environment."
            )
        async with self._building:
            image = f"hud/{self.folder.resolve().name.lower()}:{await asyncio.to_thread(_digest, self.folder)}"
            if not await has_image(image):
                await _build(self.folder, image)
            return image


async def _build(folder: Path, image: str) -> None:
    """Build an image. Raises `UsageError` with the last line of a build that fails."""
    engine = await find_container_engine()
    command, variables = build_command(engine, folder, folder / DOCKERFILE, image)
    process = await asyncio.create_subprocess_exec(
        *command,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    if process.returncode != 0:
        reason = last_line(printed, process.returncode)
        raise UsageError(f"{folder / DOCKERFILE} cannot be built: {reason}")


def _digest(folder: Path) -> str:
    """Return a digest of a folder's source files."""
    with tempfile.TemporaryFile() as archive:
        pack(folder, archive)
        archive.seek(0)
        return hashlib.file_digest(archive, "sha256").hexdigest()[:16]


def _gpus(slug: str, resources: RuntimeResources) -> int | None:
    """Return the number of GPUs of a task. Raises `UsageError` for one that names their type."""
    if resources.gpu is None:
        return None
    if resources.gpu.type is not None:
        raise UsageError(
            f"Task {slug!r} asks for GPUs of type {resources.gpu.type!r}: a container engine passes through this machine's. "
            "Choose its machine by runtime_config.labels, and give the number alone."
        )
    return resources.gpu.count


def _least(limit: float | None, requested: float | None) -> float | None:
    values = [value for value in (limit, requested) if value is not None]
    return min(values, default=None)
