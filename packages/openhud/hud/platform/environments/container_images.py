"""Builds of container images, where a Docker daemon is configured: `HUD_DOCKER=1`, and a daemon that answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hud import settings
from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.environment.sources.manifest import tool_row
from hud.errors import HudError, UsageError
from hud.fleet.builds.docker import READY_SECONDS, beside_docker_s_own, container, docker
from hud.platform.environments.build_commands import run
from hud.platform.environments.build_log import BuildLog

DOCKERFILE = "Dockerfile.hud"


async def wanted(source: Path, log: BuildLog) -> bool:
    """True where a source is to be built as an image: it says how, and there is a daemon to do it."""
    if settings.load().environment.get("HUD_DOCKER") != "1" or not (source / DOCKERFILE).is_file():
        return False
    try:
        await docker("info", "--format", "{{.ServerVersion}}")
    except HudError as error:
        await log.say(f"Docker is configured, but does not answer ({error})")
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
    variables = {**beside_docker_s_own({**arguments, **secrets}), "DOCKER_BUILDKIT": "1"}
    await run([*command, str(source)], variables, log)


async def describe(image: str, variables: Mapping[str, str], log: BuildLog) -> dict[str, Any]:
    """Start an image once and return its environment's manifest. Raises `UsageError` where it does not serve one."""
    await log.say("Starting the image.")
    async with container(image, variables) as (identifier, host, port):
        try:
            connection = await RemoteConnection.dial(host, port, ready_timeout=READY_SECONDS)
            try:
                hello = await connection.hello()
                tasks = await connection.list_tasks()
                tools = await connection.list_tools()
            finally:
                await connection.close()
        except HudError as error:
            await log.say(*(await docker("logs", "--tail", "50", identifier)).splitlines())
            raise UsageError(f"The image does not serve its environment: {error}") from error
    offered = hello.get("bindings") or hello.get("capabilities") or []
    names = [binding.get("name") for binding in offered if isinstance(binding, dict)]
    return {
        "name": connection.name,
        "version": connection.version,
        "tasks": tasks,
        "tools": [tool_row(spec) for spec in tools],
        "capabilities": [{"name": name} for name in names if name],
        "image": image,
    }
