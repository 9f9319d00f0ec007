"""Environments as container images, by way of the docker command.

An image's contract is HUD's: its CMD serves the control channel on port 8765.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hud.errors import InfrastructureFault, UsageError
from hud.eval.runtimes.remote import Runtime

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.channel.client.remote_connection import RemoteConnection

PORT = 8765
READY_SECONDS = 120.0
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR")
_OF_DOCKER = ("DOCKER_", "BUILDKIT_", "BUILDX_", "LD_")


@dataclass(frozen=True)
class ImageRuntime:
    """A container of its own for each rollout."""

    image: str
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[RemoteConnection]:
        """Start a container, connect, and take it away afterwards."""
        async with AsyncExitStack() as stack:
            _, host, port = await stack.enter_async_context(container(self.image, self.variables))
            runtime = Runtime(f"tcp://{host}:{port}", {"ready_timeout": READY_SECONDS})
            yield await stack.enter_async_context(runtime(task))


@asynccontextmanager
async def container(
    image: str, variables: Mapping[str, str]
) -> AsyncIterator[tuple[str, str, int]]:
    """A running container: its id, and host and port of its control channel, on this machine alone.

    Raises `InfrastructureFault` where it has no address.
    """
    # By name only: a list of processes shows no values.
    given = [part for name in sorted(variables) for part in ("--env", name)]
    publish = ["--publish", f"127.0.0.1::{PORT}"]
    started = await docker("run", "--detach", *publish, *given, image, variables=variables)
    identifier = started.splitlines()[-1].strip() if started else ""
    try:
        addresses = (await docker("port", identifier, f"{PORT}/tcp")).splitlines()
        if not addresses:
            raise InfrastructureFault(f"docker gave {image} no address; does it still run?")
        host, _, port = addresses[0].strip().rpartition(":")
        yield identifier, host, int(port)
    finally:
        # Whatever happens to who asked: a container that is left stays for ever.
        await asyncio.shield(docker("rm", "--force", identifier))


async def docker(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a short docker command and return what it prints; raises `InfrastructureFault` with its last line."""
    try:
        process = await asyncio.create_subprocess_exec(
            "docker",
            *arguments,
            env=beside_docker_s_own(variables or {}),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise InfrastructureFault(f"docker cannot be run: {error.strerror}.") from error
    try:
        printed, _ = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    text = printed.decode("utf-8", "replace").strip()
    if process.returncode != 0:
        told = text.splitlines()[-1] if text else f"status {process.returncode}"
        raise InfrastructureFault(f"docker {arguments[0]}: {told}")
    return text


def beside_docker_s_own(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment's variables, and those that docker itself needs: where its daemon is, nothing of ours.

    Raises `UsageError` where the two clash: whoever wrote the environment must not choose the daemon, or the docker.
    """
    for name in sorted(variables):
        if name in _PASSED or name.startswith(_OF_DOCKER):
            raise UsageError(f"The variable {name} is docker's own; give it another name.")
    own = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith("DOCKER_")
    }
    return {**own, **variables}
