"""Joining a platform's fleet from another machine, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from hud.client import Client
from hud.client.presence import presence
from hud.fleet.build_cache import BuildCache
from hud.fleet.capacity import measured
from hud.fleet.worker import Place, Worker


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
) -> None:
    """Play rollouts of the platform at `url` until a signal comes; `key` is a pass.

    Raises `PlatformError` where the platform refuses the pass.
    """
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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.work()
