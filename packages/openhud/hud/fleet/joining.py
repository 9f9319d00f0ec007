"""Joining a platform's fleet from another machine.

SIGTERM and SIGINT stop the worker (again: at once), SIGUSR1 drains it.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from hud.client import Client
from hud.errors import InfrastructureFault, UsageError
from hud.eval.runtimes.containers.container_engine import find_container_engine
from hud.fleet.builds.build_cache import BuildCache
from hud.fleet.capacity import measured
from hud.fleet.endings import follow_signals, follow_stdin
from hud.fleet.worker import Place, Worker
from hud.processes.presence import presence


async def join(
    url: str,
    key: str,
    *,
    rollouts: int,
    cache: Path,
    name: str | None,
    labels: dict[str, str],
    images: bool,
    notice: float,
    say: Callable[[str], None],
    with_parent: bool = False,
) -> None:
    """Play rollouts of the platform at `url` until a signal comes; `key` is a pass.

    `with_parent`: also end, handing everything back at once, when standard input does: the program that started this one
    is gone. Raises `PlatformError` where the platform refuses the pass, `UsageError` where there are to be images, and no
    container engine answers.
    """
    if images:
        try:
            await find_container_engine()
        except InfrastructureFault as error:
            raise UsageError(f"--images needs docker or podman on this machine: {error}") from error
    client = Client(api_url=url, api_key=key)
    place = Place(
        # Whoever knew it could bring results in its name.
        worker=f"{presence('worker')}/{secrets.token_hex(16)}",
        name=name or socket.gethostname(),
        capacity=measured(images=images),
        labels=labels,
    )
    builds = BuildCache(cache, client, say)
    worker = Worker(client, url, rollouts, place, builds=builds, notice=notice, say=say)
    follow_signals(worker)
    if with_parent:
        follow_stdin(worker)
    await worker.work()
