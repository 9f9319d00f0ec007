"""`python -m hud.fleet.rollout_worker [--rollouts N]`: a worker that the platform at HUD_API_URL started on its own machine.

It has a pass as HUD_API_KEY, runs builds where the platform keeps them, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket

from hud import settings
from hud.client import Client
from hud.client.presence import presence
from hud.fleet.capacity import measured
from hud.fleet.worker import Place, Worker


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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    loop.run_in_executor(None, _follow_stdin, loop, worker)
    await worker.work()
    os._exit(0)  # The thread that reads standard input never ends by itself.


def _follow_stdin(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """Stop when the platform that started this process is gone."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(worker.stop)


def main() -> None:
    """Run a worker."""
    parser = argparse.ArgumentParser(prog="hud.fleet.rollout_worker")
    parser.add_argument("--rollouts", type=int, default=16)
    asyncio.run(_main(parser.parse_args().rollouts))


if __name__ == "__main__":
    main()
