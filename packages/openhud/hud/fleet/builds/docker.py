"""Environments as container images, by way of the docker command.

An image's contract is HUD's: its CMD serves the control channel on port 8765.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hud.environment.channel.client.remote_connection import Loss, RemoteConnection
from hud.environment.processes.reaper import signalled
from hud.errors import InfrastructureFault, UsageError
from hud.eval.runtimes.process_loss import loss_of
from hud.eval.runtimes.remote import Runtime

if TYPE_CHECKING:
    from hud.environment import Task

PORT = 8765
READY_SECONDS = 120.0
_CHUNK = 1 << 20
_STATE = "{{.State.Running}} {{.State.ExitCode}} {{.State.OOMKilled}}"
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
            identifier, host, port = await stack.enter_async_context(
                container(self.image, self.variables)
            )
            runtime = Runtime(f"tcp://{host}:{port}", {"ready_timeout": READY_SECONDS})
            connection = await stack.enter_async_context(runtime(task))
            connection.why_lost = lambda: _loss_of(identifier)
            yield connection


@asynccontextmanager
async def container(
    image: str, variables: Mapping[str, str]
) -> AsyncIterator[tuple[str, str, int]]:
    """A running container: its id, and host and port of its control channel, on this machine alone.

    Raises `InfrastructureFault` where it has no address, and for an image that is not here.
    """
    # By name only: a list of processes shows no values.
    variable_options = [part for name in sorted(variables) for part in ("--env", name)]
    publish = ["--publish", f"127.0.0.1::{PORT}"]
    # A public registry may have an image of this name, and of somebody else.
    here = ["--detach", "--pull=never"]
    started = await docker("run", *here, *publish, *variable_options, image, variables=variables)
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


async def _loss_of(identifier: str) -> Loss:
    """Return how a run's container ended, as the loss of its connection."""
    try:
        state = await docker("inspect", "--format", _STATE, identifier)
        running, code, lacked_memory = state.split()
        status = int(code)
    except (InfrastructureFault, ValueError) as error:
        return Loss(f"its container cannot be found: {error}", InfrastructureFault)
    if running == "true":
        return Loss("it closed its connection, but its container runs on", alone=True)
    return loss_of(signalled(status), "", lacked_memory=lacked_memory == "true")


async def has_image(image: str) -> bool:
    """Return whether this machine's docker has an image of that name; raises `InfrastructureFault` where it does not answer."""
    listed = await docker("image", "ls", "--quiet", image)
    return bool(listed)


async def load_image(archive: Path) -> None:
    """Have this machine's docker take over the images of an archive."""
    await docker("load", "--quiet", "--input", str(archive))


def save_image(image: str, file: IO[bytes], most_bytes: int) -> None:
    """Write an image of this machine's docker as a tar.gz, in a thread that may wait.

    Raises `InfrastructureFault` where docker has none of this name, `UsageError` where it is larger than `most_bytes`.
    """
    command, own = ["docker", "save", image], beside_docker_s_own({})
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        ) as process,
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0, filename="") as packed,
    ):
        assert process.stdout is not None
        size = 0
        while chunk := process.stdout.read(_CHUNK):
            size += len(chunk)
            if size > most_bytes:
                process.kill()
                raise UsageError(
                    f"The image {image} is larger than {most_bytes >> 30} GiB, the most that is sent to other machines."
                )
            packed.write(chunk)
        if process.wait() != 0:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            raise InfrastructureFault(f"docker save: {lines[-1] if lines else process.returncode}")


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
        reason = text.splitlines()[-1] if text else f"status {process.returncode}"
        raise InfrastructureFault(f"docker {arguments[0]}: {reason}")
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
