"""`python -m hud.fleet.rollout_worker [--rollouts N]`: a worker that the platform at HUD_API_URL started on its own machine.

It has a pass as HUD_API_KEY, runs builds where the platform keeps them, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket

from hud import settings
from hud.client import Client
from hud.fleet.capacity import measured
from hud.fleet.endings import follow_signals, follow_stdin
from hud.fleet.worker import Place, Worker
from hud.processes.presence import presence


async def _main(rollouts: int) -> None:
    now = settings.load()
    assert now.api_url is not None
    client = Client(api_url=now.api_url, api_key=now.api_key, home=now.home)
    # Whatever its builds need, they were built here.
    place = Place(
        worker=presence("worker"),
        name=f"{socket.gethostname()} (the server's own, {os.getpid()})",
        capacity=measured(images=True),
    )
    worker = Worker(client, now.gateway_url or now.api_url, rollouts, place)
    follow_signals(worker)
    follow_stdin(worker)
    await worker.work()


def main() -> None:
    """Run a worker."""
    parser = argparse.ArgumentParser(prog="hud.fleet.rollout_worker")
    parser.add_argument("--rollouts", type=int, default=16)
    asyncio.run(_main(parser.parse_args().rollouts))


if __name__ == "__main__":
    main()
