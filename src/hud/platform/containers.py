"""Environments as container images, where a Docker daemon is configured: `HUD_DOCKER=1`, and a daemon that answers.

An image's contract is HUD's: its CMD serves the control channel on port 8765.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hud import settings
from hud.environment.channel.client import RemoteConnection
from hud.errors import HudError, UsageError
from hud.platform.build_log import BuildLog
from hud.platform.commands import run
from hud.platform.installing import clean_variables

DOCKERFILE = "Dockerfile.hud"
PORT = 8765
READY_SECONDS = 120.0
_PASSED = ("HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH")


async def wanted(source: Path, log: BuildLog) -> bool:
    """True where a source is to be built as an image: it says how, and there is a daemon to do it."""
    if settings.load().environment.get("HUD_DOCKER") != "1" or not (source / DOCKERFILE).is_file():
        return False
    try:
        await _ask("info", "--format", "{{.ServerVersion}}")
    except (UsageError, OSError) as error:
        await log.say(f"Docker is configured, but does not answer: {error}")
        return False
    return True


async def build(
    source: Path,
    image: str,
    log: BuildLog,
    *,
    arguments: Mapping[str, str],
    secrets: Mapping[str, str],
    no_cache: bool,
) -> None:
    """Build a source's `Dockerfile.hud` as `image`.

    Values travel as variables of the docker command, which lists of processes do not show; secrets are mounts of
    BuildKit (`RUN --mount=type=secret,id=NAME`), which no layer keeps.
    """
    command = ["docker", "build", "--file", str(source / DOCKERFILE), "--tag", image]
    command += ["--no-cache"] if no_cache else []
    for name in sorted(arguments):
        command += ["--build-arg", name]
    for name in sorted(secrets):
        command += ["--secret", f"id={name},env={name}"]
    variables = {**_variables(), "DOCKER_BUILDKIT": "1", **arguments, **secrets}
    await run([*command, str(source)], variables, log)


async def describe(image: str, variables: Mapping[str, str], log: BuildLog) -> dict[str, Any]:
    """Start an image once and return its environment's manifest, as its control channel tells it."""
    given = [part for name in sorted(variables) for part in ("--env", name)]
    publish = ["--publish", f"127.0.0.1::{PORT}"]
    started = await _ask("run", "--detach", *publish, *given, image, variables=variables)
    container = started.splitlines()[-1].strip()
    try:
        address = await _ask("port", container, f"{PORT}/tcp")
        host, _, port = address.splitlines()[0].strip().rpartition(":")
        connection = await RemoteConnection.dial(host, int(port), ready_timeout=READY_SECONDS)
        try:
            said = await connection.hello()
            tasks = await connection.list_tasks()
        finally:
            await connection.close()
    except (HudError, ValueError, IndexError) as error:
        printed = await _ask("logs", "--tail", "50", container)
        await log.say(*printed.splitlines())
        raise UsageError(f"The image does not serve its environment: {error}") from error
    finally:
        await _ask("rm", "--force", container)
    capabilities = said.get("capabilities") or said.get("bindings") or []
    names = [one.get("name") for one in capabilities if isinstance(one, dict)]
    return {
        "name": connection.name,
        "version": connection.version,
        "tasks": tasks,
        "capabilities": [{"name": name} for name in names if name],
        "image": image,
    }


async def _ask(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a short docker command and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        "docker",
        *arguments,
        env={**_variables(), **(variables or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    text = printed.decode("utf-8", "replace").strip()
    if process.returncode != 0:
        told = text.splitlines()[-1] if text else f"status {process.returncode}"
        raise UsageError(f"docker {arguments[0]}: {told}")
    return text


def _variables() -> dict[str, str]:
    ours = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**clean_variables(), **ours}
