"""Builds of container images: with `HUD_DOCKER=1`, where a container engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hud import settings
from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.environment.sources.manifest import tool_row
from hud.errors import HudError, UsageError
from hud.eval.runtimes.containers.contained_environment import READY_SECONDS, serving_container
from hud.eval.runtimes.containers.container import ContainerSpec
from hud.eval.runtimes.containers.container_engine import find_container_engine
from hud.eval.runtimes.containers.images import build_command
from hud_platform.environments.build_commands import run
from hud_platform.environments.build_log import BuildLog

DOCKERFILE = "Dockerfile.hud"


async def wanted(source: Path, log: BuildLog) -> bool:
    """Return whether a source is built as an image: it has a `Dockerfile.hud`, and a container engine answers."""
    if settings.load().environment.get("HUD_DOCKER") != "1" or not (source / DOCKERFILE).is_file():
        return False
    try:
        engine = await find_container_engine()
        await asyncio.to_thread(engine.check)
    except HudError as error:
        await log.say(f"Images are configured, but no container engine answers ({error})")
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
    """Build a source's `Dockerfile.hud` as `image`."""
    command, variables = build_command(
        await find_container_engine(),
        source,
        source / DOCKERFILE,
        image,
        arguments=arguments,
        secrets=secrets,
        no_cache=no_cache,
    )
    await run(command, variables, log)


async def describe(image: str, variables: Mapping[str, str], log: BuildLog) -> dict[str, Any]:
    """Start an image once and return its environment's manifest. Raises `UsageError` where it does not serve one."""
    await log.say("Starting the image.")
    spec = ContainerSpec(image, variables=variables)
    async with serving_container(spec) as (contained, host, port):
        try:
            connection = await RemoteConnection.dial(host, port, ready_timeout=READY_SECONDS)
            try:
                hello = await connection.hello()
                tasks = await connection.list_tasks()
                tools = await connection.list_tools()
            finally:
                await connection.close()
        except HudError as error:
            await log.say(*await contained.logs(50))
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
