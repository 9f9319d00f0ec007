"""`python -m hud.fleet.rollout_worker [--rollouts N]`: takes rollouts from the platform at HUD_API_URL, and plays them.

The platform starts it, with a pass as HUD_API_KEY, and it ends when its standard input does. What a rollout records
is kept here until it is over and then brought in one piece: an attempt that does not come to its end leaves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from functools import partial
from typing import Any

from hud import settings
from hud.client import Client
from hud.client.presence import presence
from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.errors import FailureKind, HudError, InfrastructureFault, PlatformError
from hud.eval.rollouts import carry_out, describe
from hud.eval.run import Run
from hud.eval.subagents import close_made
from hud.fleet.environments import WarmEnvironments
from hud.fleet.submitted_agents import player_of
from hud.trace import Trace

RENEW_SECONDS = 2.0
"""Also how soon a cancelled rollout ends."""
LINGER_SECONDS = 0.02
PAUSE_SECONDS = 1.0
"""Between two tries to reach a platform that does not answer."""


class Worker:
    """Plays up to `most` rollouts at a time."""

    def __init__(self, client: Client, gateway_url: str, most: int) -> None:
        self.client = client
        self.gateway_url = gateway_url
        self.most = most
        self.name = presence("worker")
        self.environments = WarmEnvironments()
        self.stopping = asyncio.Event()
        self._playing: dict[str, asyncio.Task[None]] = {}
        self._free = asyncio.Event()

    async def work(self) -> None:
        """Play until told to stop; what is not over then goes back into the queue."""
        renewing = asyncio.create_task(self._renew())
        try:
            while not self.stopping.is_set():
                await self._take()
        finally:
            renewing.cancel()
            await self._hand_back()
            await self.environments.close()

    async def _take(self) -> None:
        """Take as many rollouts as there is room for, or wait for room."""
        room = self.most - len(self._playing)
        if room <= 0:
            self._free.clear()
            await self._wait(self._free.wait())
            return
        if room < self.most // 4:
            # Short rollouts end close together: one request for several of them costs the platform less.
            await self._wait(asyncio.sleep(LINGER_SECONDS))
            room = self.most - len(self._playing)
        asking = self.client.post("/v2/fleet/take", {"worker": self.name, "most": room})
        try:
            answer = await self._wait(asking)
        except PlatformError:
            await self._wait(asyncio.sleep(PAUSE_SECONDS))
            return
        for given in (answer or {}).get("items", []):
            task = asyncio.create_task(self._play(given))
            self._playing[given["trace_id"]] = task
            task.add_done_callback(partial(self._done, given["trace_id"]))

    async def _wait(self, work: Any) -> Any:
        """Wait for `work`, or until this worker is told to stop."""
        doing = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({doing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if doing.done():
            return doing.result()
        doing.cancel()
        return None

    async def _play(self, given: dict[str, Any]) -> None:
        """Play one rollout and bring what it recorded."""
        recorder = MemoryRecorder()
        run = _run_of(given, recorder)
        try:
            provider = self.environments.provider(given)
            player = player_of(given, self.gateway_url)
            try:
                await carry_out(run, player, provider, _limit(given), retries=0)
            finally:
                with contextlib.suppress(HudError):
                    await close_made(player)
                    await player.aclose()
        except asyncio.CancelledError:
            if self.stopping.is_set():
                raise  # It goes back into the queue.
        except Exception as error:
            # Whatever it is, it is this rollout's: a worker that gave it up without a word would have it played again.
            _fail(run, error)
        again = run.failure_kind == "infrastructure"
        await self._bring(given, recorder.take(), again)

    async def _bring(self, given: dict[str, Any], events: bytes, again: bool) -> None:
        place = f"/v2/fleet/finish/{given['trace_id']}"
        params = {"worker": self.name, "attempt": given["attempt"], "again": again}
        # Repeating it is harmless: only an attempt that holds the rollout is heard, and only once.
        await self.client.post(place, events, params=params, retry=True)

    async def _renew(self) -> None:
        """Keep hold of what is being played, and hear what is to be cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            held = {"worker": self.name, "traces": list(self._playing)}
            if not self._playing:
                continue
            try:
                answer = await self.client.post("/v2/fleet/renew", held, retry=True)
            except PlatformError:
                continue  # The lease outlasts a short silence; a long one costs the rollouts, as it should.
            for trace in (*answer["cancel"], *answer["lost"]):
                task = self._playing.get(trace)
                if task is not None:
                    task.cancel()

    async def _hand_back(self) -> None:
        held = list(self._playing)
        for task in list(self._playing.values()):
            task.cancel()
        if held:
            await asyncio.wait(
                list(self._playing.values()) or [asyncio.create_task(asyncio.sleep(0))]
            )
            with contextlib.suppress(HudError):
                await self.client.post("/v2/fleet/release", {"worker": self.name, "traces": held})

    def _done(self, trace_id: str, task: asyncio.Task[None]) -> None:
        self._playing.pop(trace_id, None)
        self._free.set()
        if not task.cancelled() and task.exception() is not None:
            print(f"{trace_id}: {task.exception()}", file=sys.stderr, flush=True)


def _run_of(given: dict[str, Any], recorder: MemoryRecorder) -> Run:
    spec = given["spec"]
    task = Task(
        env=spec["env"],
        id=spec["task"],
        args=spec.get("args") or {},
        slug=spec.get("slug") or "",
        runtime_config=spec.get("runtime_config"),
        verifier=spec.get("verifier"),
    )
    return Run(
        task=task,
        trace=Trace(trace_id=given["trace_id"]),
        job_id=given["job_id"],
        group_id=spec.get("group_id"),
        attempt=spec.get("attempt", 0),
        training_progress=spec.get("training_progress"),
        recorder=recorder,
    )


def _limit(given: dict[str, Any]) -> float | None:
    """Return the seconds that a rollout asks for, where it does."""
    limits = (given["spec"].get("runtime_config") or {}).get("limits") or {}
    return None if limits.get("run_timeout_s") is None else float(given["limit_seconds"])


def _fail(run: Run, error: Exception) -> None:
    """Record a rollout that could not even begin."""
    ours = isinstance(error, InfrastructureFault) or not isinstance(error, HudError)
    kind: FailureKind = "infrastructure" if ours else "environment"
    run.recorder.run_started(run)
    run.fail(kind, describe(error))
    run.recorder.run_ended(run)


async def _main(rollouts: int) -> None:
    now = settings.load()
    assert now.api_url is not None
    client = Client(api_url=now.api_url, api_key=now.api_key, home=now.home)
    worker = Worker(client, now.gateway_url or now.api_url, rollouts)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stopping.set)
    loop.run_in_executor(None, _follow_stdin, loop, worker)
    await worker.work()
    os._exit(0)  # The thread that reads standard input never ends by itself.


def _follow_stdin(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """Stop when the platform that started this process is gone."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(worker.stopping.set)


def main() -> None:
    """Run a worker."""
    parser = argparse.ArgumentParser(prog="hud.fleet.rollout_worker")
    parser.add_argument("--rollouts", type=int, default=16)
    asyncio.run(_main(parser.parse_args().rollouts))


if __name__ == "__main__":
    main()
