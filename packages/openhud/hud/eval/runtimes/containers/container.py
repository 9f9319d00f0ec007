"""`Container`: a running container of an image, with its limits, commands and files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from uuid import uuid4

from hud.errors import EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.runtimes.containers.container_engine import ContainerEngine, find_container_engine
from hud.eval.runtimes.containers.health_check import parse_health_check
from hud.eval.runtimes.containers.images import check_reference
from hud.graders.command import CommandOutcome

COMMAND_SECONDS = 600.0
_STATE = "{{.State.Running}} {{.State.ExitCode}} {{.State.OOMKilled}}"
_END_ALL = "kill -KILL -1 || :"


@dataclass(frozen=True)
class ContainerSpec:
    """An image and how to run it; None: unlimited."""

    image: str
    command: Sequence[str] = ()
    """Command in place of the image's."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    processors: float | None = None
    memory_mb: float | None = None
    processes: int | None = None
    gpus: int | None = None
    """GPUs of this machine that are passed through."""
    network: Literal["all", "none"] = "all"
    port: int | None = None
    """Port that is published on this machine's loopback; needs the network."""
    mounts: Mapping[str, str | Path] = field(default_factory=dict)
    """Files and folders of this machine by their path inside, read-only."""
    allowed_hosts: Sequence[str] | None = None
    """Web hosts that a proxy on its loopback reaches, without any other network: names or patterns, with a port or for 80 and 443."""

    def __post_init__(self) -> None:
        if self.network not in ("all", "none"):
            raise UsageError(
                f"A container's network is 'all' or 'none', not {self.network!r}; name hosts by allowed_hosts."
            )
        if self.allowed_hosts is not None and self.network != "none":
            raise UsageError("allowed_hosts says what of the network is allowed; give network='none', too.")  # fmt: skip

    def arguments(self, name: str, program: str) -> list[str]:
        """Return the arguments of `run` of an engine. Values of variables are not in them: lists of processes would show them.

        Raises `UsageError` for a malformed reference of the image.
        """
        check_reference(self.image)
        # A public registry may have an image of this name, of another author.
        arguments = ["run", "--detach", "--pull=never", "--name", name]
        if self.network == "none":
            arguments += ["--network", "none"]
        elif self.port is not None:
            arguments += ["--publish", f"127.0.0.1::{self.port}"]
        limits = {
            "--cpus": self.processors,
            "--memory": None if self.memory_mb is None else f"{int(self.memory_mb * 1024)}k",
            "--pids-limit": self.processes,
        }
        arguments += self._gpu_arguments(program)
        for option, limit in limits.items():
            arguments += [] if limit is None else [option, str(limit)]
        for target, source in self.mounts.items():
            arguments += ["--volume", f"{Path(source).expanduser().resolve()}:{target}:ro"]
        for name in sorted(self.variables):
            arguments += ["--env", name]
        return [*arguments, self.image, *self.command]

    def _gpu_arguments(self, program: str) -> list[str]:
        """Return the options for GPUs: podman names each by its Container Device Interface."""
        if self.gpus is None:
            return []
        if program == "docker":
            return ["--gpus", str(self.gpus)]
        return [f"--device=nvidia.com/gpu={number}" for number in range(self.gpus)]


class Container:
    """A started container."""

    def __init__(self, engine: ContainerEngine, identifier: str, image: str) -> None:
        self.engine, self.identifier, self.image = engine, identifier, image

    @classmethod
    async def start(cls, spec: ContainerSpec) -> Container:
        """Start a container; raises `InfrastructureFault` for an image that is not here."""
        engine = await find_container_engine()
        name = f"hud-{uuid4().hex}"
        try:
            printed = await engine.call(
                *spec.arguments(name, engine.program), variables=spec.variables
            )
        except UsageError:
            raise  # Nothing was started.
        except BaseException:
            with suppress(InfrastructureFault):  # There is one, although it did not start.
                await cls(engine, name, spec.image).end()
            raise
        return cls(engine, printed.splitlines()[-1].strip() if printed else name, spec.image)

    async def address(self, port: int) -> tuple[str, int]:
        """Return host and port on this machine of a published port. Raises `InfrastructureFault` without one."""
        lines = (await self.engine.call("port", self.identifier, f"{port}/tcp")).splitlines()
        if not lines:
            raise InfrastructureFault(
                f"{self.engine.program} gave a container no address; does it still run?"
            )
        host, _, published = lines[0].strip().rpartition(":")
        return host, int(published)

    async def execute(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        seconds: float = COMMAND_SECONDS,
        variables: Mapping[str, str] | None = None,
        user: str | None = None,
        killing: bool = True,
    ) -> CommandOutcome:
        """Run a command inside; after `seconds`, `exit_code` is None and every process but the first is killed.

        `killing=False`: they are not, for a check beside services.
        """
        options = ["--interactive"]
        options += [] if cwd is None else ["--workdir", cwd]
        options += [] if user is None else ["--user", user]
        for name in sorted(variables or {}):
            options += ["--env", name]
        process = await self.engine.start(
            "exec", *options, self.identifier, *argv, variables=variables
        )
        try:
            async with asyncio.timeout(seconds):
                out, err = await process.communicate(stdin)
        except BaseException as error:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if not isinstance(error, TimeoutError):
                raise
            if killing:
                await self.end_all()
            return CommandOutcome(None, "", "")
        return CommandOutcome(
            process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        )

    async def end_all(self) -> None:
        """Kill every process but the first: what an agent left running. Raises `InfrastructureFault` without /bin/sh."""
        command = ["exec", "--user", "0", self.identifier, "/bin/sh", "-c", _END_ALL]
        await self.engine.call(*command)

    async def copy_in(self, source: Path, target: str) -> None:
        """Copy a file, or a folder's contents, to a path inside."""
        await self.engine.call("cp", _copied(source), f"{self.identifier}:{target}")

    async def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or folder from inside to a path of this machine."""
        await self.engine.call("cp", f"{self.identifier}:{source}", str(Path.cwd() / target))

    async def state(self) -> tuple[bool, int, bool]:
        """Return whether it runs, its exit status, and whether its memory ran out. Raises `InfrastructureFault`."""
        printed = await self.engine.call("inspect", "--format", _STATE, self.identifier)
        try:
            running, status, lacked_memory = printed.split()
            return running == "true", int(status), lacked_memory == "true"
        except ValueError:
            raise InfrastructureFault(f"inspect answered {printed!r}.") from None

    async def wait_until_healthy(self) -> None:
        """Wait for the health check of its image, if any. Raises `EnvironmentFault` if it stays unhealthy, `InfrastructureFault`."""
        printed = await self.engine.call("inspect", "--format", "{{json .Config.Healthcheck}}", self.identifier)  # fmt: skip
        try:
            check = parse_health_check(json.loads(printed))
        except json.JSONDecodeError:
            raise InfrastructureFault(f"inspect answered {printed!r}.") from None
        if check is None:
            return
        try:
            await check.wait(
                lambda argv, seconds: self.execute(argv, seconds=seconds, killing=False)
            )
        except EnvironmentFault as fault:
            raise EnvironmentFault(f"The container of {self.image}: {fault}") from None

    async def logs(self, lines: int) -> list[str]:
        """Return its last lines of output."""
        printed = await self.engine.call("logs", "--tail", str(lines), self.identifier)
        return printed.splitlines()

    async def end(self) -> None:
        """Kill and remove it; a cancelled caller leaves none behind."""
        # podman waits ten seconds for its end otherwise.
        at_once = ["--time", "0"] if self.engine.program == "podman" else []
        await asyncio.shield(self.engine.call("rm", "--force", *at_once, self.identifier))


@asynccontextmanager
async def container(spec: ContainerSpec) -> AsyncIterator[Container]:
    """A running container for the block."""
    started = await Container.start(spec)
    try:
        yield started
    finally:
        await started.end()


def _copied(source: Path) -> str:
    """Return a source as `cp` takes it: a folder by its contents."""
    path = source.absolute()
    return f"{path}/." if path.is_dir() else str(path)
