"""The platform's own workers: processes that it starts, watches, and starts again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from hud.processes.backoff import Backoff
from hud.processes.child import Child
from hud_platform.access import Identity
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store.tables import LOCAL_TEAM

if TYPE_CHECKING:
    from hud_platform.access.passes import Passes
    from hud_platform.process.config import PlatformConfig
    from hud_platform.store import Store

PASS_SECONDS = 365 * 86_400.0
RESTARTS = Backoff(0.5, longest_seconds=30.0)
STEADY_SECONDS = 30.0
"""Lifetime of a worker, in seconds, after which its end is the first failure again."""
STOP_SECONDS = 10.0


class Workers:
    """As many workers as the configuration says."""

    def __init__(
        self, config: PlatformConfig, store: Store, passes: Passes, stopping: asyncio.Event
    ) -> None:
        self.config = config
        self.rollouts = Rollouts(store)
        self.passes = passes
        self.stopping = stopping

    async def work(self) -> None:
        """Keep the workers alive until the platform stops; then have them hand back what they hold."""
        await asyncio.to_thread(self.rollouts.begin_again)
        await asyncio.gather(*(self._keep() for _ in range(self.config.rollout_workers)))

    async def _keep(self) -> None:
        stopping = self.stopping
        failures = 0
        while not stopping.is_set():
            started = asyncio.get_running_loop().time()
            async with self._start() as child:
                ended = asyncio.create_task(child.ended())
                stopped = asyncio.create_task(stopping.wait())
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopping.is_set():
                    child.signal(signal.SIGTERM)
                    await child.end(STOP_SECONDS)
                    return
            stopped.cancel()
            await asyncio.to_thread(self.rollouts.recover)
            lived = asyncio.get_running_loop().time() - started
            failures = 1 if lived > STEADY_SECONDS else failures + 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), RESTARTS.seconds(failures))

    def _start(self) -> Child:
        who = Identity(team_id=LOCAL_TEAM, scopes=frozenset(), worker=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")},
            "HUD_API_URL": self.config.url,
            "HUD_GATEWAY_URL": self.config.url,
            "HUD_API_KEY": self.passes.make(who, PASS_SECONDS),
            "HUD_HOME": str(self.config.home),
        }
        return Child(
            [sys.executable, "-m", "hud.fleet.rollout_worker"],
            env=environment,
            stdin=subprocess.PIPE,  # It ends when this process does, however that ends.
        )
