"""Images of this machine's container engine: built, saved and loaded. None is ever pulled from a registry at a run."""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from hud.errors import InfrastructureFault, UsageError
from hud.eval.runtimes.containers.container_engine import (
    ContainerEngine,
    container_engine,
    find_container_engine,
    last_line,
)

_CHUNK = 1 << 20
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")


def check_reference(image: str) -> None:
    """Raise `UsageError` for a reference that is none: an engine would take `--privileged` for an option."""
    if not _REFERENCE.fullmatch(image):
        raise UsageError(f"{image!r} is no name of an image.")


def build_command(
    engine: ContainerEngine,
    context: Path,
    dockerfile: Path,
    image: str,
    *,
    arguments: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    no_cache: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Return the command that builds `image`, and its variables.

    Values of arguments and secrets are variables of the command, which lists of processes do not show; secrets are mounts
    (`RUN --mount=type=secret,id=NAME`), which no layer keeps.
    """
    arguments, secrets = arguments or {}, secrets or {}
    command = [engine.program, "build", "--file", str(dockerfile), "--tag", image]
    command += ["--no-cache"] if no_cache else []
    # OCI's own format has no HEALTHCHECK and no SHELL, which podman would drop.
    command += ["--format", "docker"] if engine.program == "podman" else []
    for name in sorted(arguments):
        command += ["--build-arg", name]
    for name in sorted(secrets):
        command += ["--secret", f"id={name},env={name}"]
    variables = {**engine.variables({**arguments, **secrets}), "DOCKER_BUILDKIT": "1"}
    return [*command, str(context)], variables


async def has_image(image: str) -> bool:
    """Return whether the engine has an image of that name; raises `InfrastructureFault` where none answers."""
    engine = await find_container_engine()
    return bool(await engine.call("image", "ls", "--quiet", image))


async def load_image(archive: Path) -> None:
    """Load the images of an archive into the engine."""
    engine = await find_container_engine()
    await engine.call("load", "--quiet", "--input", str(archive))


def save_image(image: str, file: IO[bytes], most_bytes: int) -> None:
    """Write an image as a tar.gz, in a thread that may wait.

    Raises `InfrastructureFault` if the engine has none of this name, `UsageError` if it is larger than `most_bytes`.
    """
    engine = container_engine()
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [engine.program, "save", image],
            env=engine.variables({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
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
            reason = last_line(errors.read(), process.returncode)
            raise InfrastructureFault(f"{engine.program} save: {reason}")
