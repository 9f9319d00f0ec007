"""`Worker`: takes rollouts from a platform, plays them, and brings what they record while they are played.

The platform's own workers and those that join from other machines are the same; only where builds lie differs. An attempt
that does not come to its end leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hud import __version__
from hud.client import Client
from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.environment.templates.runtime_config import met_by_node
from hud.errors import FailureKind, HudError, InfrastructureFault, NotFoundError, PlatformError
from hud.eval.concurrency.admission import machine_memory
from hud.eval.rollout_failure import describe
from hud.eval.rollouts import play_here
from hud.eval.run import Run
from hud.eval.scheduler import patient_collector
from hud.eval.snapshots.snapshots import Snapshots
from hud.eval.subagents import close_made
from hud.fleet.attempts.attempt_snapshots import AttemptSnapshots
from hud.fleet.attempts.event_delivery import Delivery
from hud.fleet.attempts.held_attempts import Attempt, HeldAttempts
from hud.fleet.builds.build_cache import BuildCache
from hud.fleet.environments import WarmEnvironments
from hud.fleet.submitted_agents import player_of
from hud.fleet.worker_load import WorkerLoad
from hud.processes.backoff import Backoff
from hud.trace import Trace

RENEW_SECONDS = 2.0
"""Also how soon a cancelled rollout ends, how old a step is at most when it is brought, and how long a rollout that was taken
ahead waits at most."""
LINGER_SECONDS = 0.05
"""Wait for more rollouts to end before a few are taken in their place: one request for several costs the platform less."""
PAUSES = Backoff(1.0, longest_seconds=5.0, spread=0.5)
"""Between two tries to reach a platform that does not answer."""
LAST_SECONDS = 5.0
"""Time for which a worker that ends waits for an answer of the platform; where none comes, its leases run out."""
SHORT_SECONDS = 0.25
"""Between two looks at the free memory while it is short."""
STREAMED_AT_ONCE = 32
"""Most rollouts whose steps are brought at each renewal; the ones that waited longest come first."""


@dataclass(frozen=True)
class Place:
    """Description of a worker, sent when it joins."""

    worker: str
    """Name under which it holds leases; of a worker on another machine, a secret."""
    name: str
    capacity: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)


class Worker:
    """Plays up to `most` rollouts at a time."""

    def __init__(
        self,
        client: Client,
        gateway_url: str,
        most: int,
        place: Place,
        *,
        builds: BuildCache | None = None,
        notice: float = 0.0,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`builds`: where builds of the platform are kept; None: they lie on this machine's disk. `notice`: seconds that
        rollouts have to end after `stop`, before they are handed back. `say` is given lines about the worker's progress.
        """
        self.client = client
        # Hundreds of results may wait for the connections of one client; a lease must not wait behind them.
        self._leases = Client(api_url=client.api_url, api_key=client.api_key)
        self.gateway_url = gateway_url
        self.most = most
        self.place = place
        self.notice = notice
        self.say = say
        self.environments = WarmEnvironments(builds=builds)
        self.stopping = asyncio.Event()
        self._held = HeldAttempts(most, place.capacity)
        self._delivery = Delivery(client, place.worker, self._brought)
        self._free = asyncio.Event()
        self._failures = 0
        """Requests for rollouts that failed in a row."""
        self._handing_back = False
        self._load = WorkerLoad()
        self._memory = machine_memory()
        self._began = time.monotonic()

    def stop(self) -> None:
        """Take nothing more; called again: hand back at once what is being played."""
        if self.stopping.is_set():
            self.notice = 0.0
        self.stopping.set()
        self._free.set()

    def drain(self) -> None:
        """Take nothing more, and end when what is being played is over, however long that takes."""
        if not self.stopping.is_set():
            self.say("Draining: nothing more is taken.")
            self.notice = math.inf
            self.stop()

    async def work(self) -> None:
        """Play until told to stop; what is not over within the notice then goes back into the queue.

        Raises `PlatformError` where the platform refuses this worker.
        """
        await self._wait(self._join())
        self.say(f"Joined {self.client.api_url} as {self.place.name}. Stop: Ctrl-C")
        behind = [asyncio.create_task(loop) for loop in (self._renew(), self._delivery.work())]
        for task in behind:
            task.add_done_callback(lambda _: self.stop())  # Neither ends by itself.
        try:
            with patient_collector():
                while not self.stopping.is_set():
                    await self._take()
                await self._let_end()
        finally:
            await self._hand_back()
            for task in behind:
                task.cancel()
            await asyncio.wait(behind)
            await self.environments.close()
            with contextlib.suppress(HudError, TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._leases.post("/v2/fleet/leave", {"worker": self.place.worker})
        for task in behind:
            if not task.cancelled():
                task.result()

    async def _join(self) -> None:
        body = {**vars(self.place), "rollouts": self.most, "version": __version__}
        for attempt in itertools.count(1):
            try:
                await self.client.post("/v2/fleet/join", body)
                return
            except PlatformError as error:
                if error.status in (401, 403):
                    raise
                if attempt == 1:
                    self.say(f"{error} Trying again.")
                await asyncio.sleep(PAUSES.seconds(attempt))

    async def _take(self) -> None:
        """Take as many rollouts as are wanted, or wait until some are."""
        if self._held.playing and self._memory.is_short:
            # The rollouts that wait here go back to others at the next renewal.
            await self._wait(asyncio.sleep(SHORT_SECONDS))
            return
        self._begin()
        most, ahead = self._held.wanted()
        if most + ahead == 0:
            self._free.clear()
            await self._wait(self._free.wait())
            return
        if 0 < most < self.most // 4:
            await self._wait(asyncio.sleep(LINGER_SECONDS))
            most, ahead = self._held.wanted()
        self._free.clear()
        body: dict[str, Any] = {
            "worker": self.place.worker,
            "most": min(most, 256),
            "ahead": min(ahead, 256),
            "free": self._held.left(),
        }
        if self._load.due():
            body["load"] = self._load.report(len(self._held.playing))
        try:
            answer = await self._wait(self.client.post("/v2/fleet/take", body))
        except NotFoundError:
            await self._wait(self._join())
            return
        except PlatformError as error:
            if error.status in (401, 403):
                raise
            self._failures += 1
            await self._wait(asyncio.sleep(PAUSES.seconds(self._failures)))
            return
        self._failures = 0
        leases = (answer or {}).get("items", [])
        for lease in leases:
            self._held.take(lease)
        self._begin()
        self._obey(answer or {})
        if not leases and not most:  # Such a request is answered at once.
            await self._wait(self._free.wait())

    def _begin(self) -> None:
        """Play what waits, as far as there is room, and memory where anything is played."""
        while not self.stopping.is_set():
            if self._held.playing and self._memory.is_short:
                return
            if (attempt := self._held.next()) is None:
                return
            attempt.task = asyncio.create_task(self._play(attempt))
            attempt.task.add_done_callback(partial(self._ended, attempt))

    def _obey(self, answer: dict[str, Any]) -> None:
        """Drain where the platform says that this node is to leave."""
        if answer.get("state") == "draining":
            self.drain()

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

    async def _play(self, attempt: Attempt) -> None:
        """Play one rollout, and have what it recorded brought."""
        lease = attempt.lease
        run = _run_of(lease, attempt.recorder)
        try:
            provider = self.environments.provider(lease)
            player = player_of(lease, self.gateway_url)
            store = AttemptSnapshots(self.client, self.place.worker, lease)
            run.live.snapshots = Snapshots(store)
            try:
                await play_here(run, player, provider, _limit(lease), retries=0)
            finally:
                with contextlib.suppress(HudError):
                    await close_made(player)
                    await player.aclose()
        except asyncio.CancelledError:
            if self._handing_back:
                raise  # It goes back into the queue.
        except Exception as error:
            # Whatever it is, it is this rollout's: a worker that gave it up without a word would have it played again.
            _fail(run, error)
        attempt.again = run.failure_kind == "infrastructure"
        if self._load.finished == 0:
            took = time.monotonic() - self._began
            self.say(f"The first rollout ended {took:.1f} s after this worker began.")
        self._load.count(broken=run.failure_kind in ("infrastructure", "environment"))
        self._held.end(attempt)
        self._delivery.end(attempt)

    async def _renew(self) -> None:
        """Keep hold of what is being played, have its steps brought, and hear what is to be cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if not len(self._held):
                continue
            held = {
                "worker": self.place.worker,
                "traces": [attempt.trace_id for attempt in self._held.all()],
                "load": self._load.report(len(self._held.playing)),
            }
            try:
                answer = await self._leases.post("/v2/fleet/renew", held, retry=True)
            except HudError:
                continue  # The lease outlasts a short silence; a long one costs the rollouts, as it should.
            for trace in (*answer["cancel"], *answer["lost"]):
                cancelled = self._held.find(trace)
                if cancelled is not None and cancelled.task is not None:
                    cancelled.task.cancel()
            self._obey(answer)
            late = time.monotonic() - RENEW_SECONDS
            await self._give_back(
                attempt
                for attempt in self._held.waiting.values()
                if attempt.since < late or attempt.trace_id in (*answer["cancel"], *answer["lost"])
            )
            waiting = [
                attempt
                for attempt in self._held.playing.values()
                if attempt.recorder.waiting_since < math.inf
            ]
            waiting.sort(key=lambda attempt: attempt.recorder.waiting_since)
            if waiting:
                self._delivery.stream(waiting[:STREAMED_AT_ONCE])

    async def _give_back(self, ahead: Iterable[Attempt]) -> None:
        """Give rollouts back that were taken ahead and not begun: others play them now."""
        if traces := [attempt.trace_id for attempt in ahead]:
            for trace in traces:
                del self._held.waiting[trace]
            body = {"worker": self.place.worker, "traces": traces, "begun": False}
            with contextlib.suppress(HudError):
                await self._leases.post("/v2/fleet/release", body, retry=True)

    async def _let_end(self) -> None:
        """Wait until everything that is played is over, for as long as the notice allows."""
        until = time.monotonic() + self.notice
        await self._give_back(self._held.waiting.values())
        if self._held.playing and self.notice > 0:
            self.say(
                f"Stopping: {len(self._held.playing)} rollouts may end; nothing more is taken."
            )
        while len(self._held) and time.monotonic() < min(until, time.monotonic() + self.notice):
            self._free.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._free.wait(), min(1.0, max(0.0, self.notice)))

    async def _hand_back(self) -> None:
        """Give back what is being played, then end it: a machine that has little time must not be waited for."""
        self._handing_back = True
        playing = list(self._held.playing.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._give_back(self._held.waiting.values())
                await self._release(playing)
        tasks = [attempt.task for attempt in playing if attempt.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._delivery.bring()
                await self._release(self._held.over.values())

    async def _release(self, begun: Iterable[Attempt]) -> None:
        """Hand back rollouts that were begun."""
        if traces := [attempt.trace_id for attempt in begun]:
            self.say(f"Handing back {len(traces)} rollouts.")
            body = {"worker": self.place.worker, "traces": traces}
            with contextlib.suppress(HudError):
                await self._leases.post("/v2/fleet/release", body, retry=True)

    def _brought(self, attempt: Attempt) -> None:
        self._held.drop(attempt)
        self._free.set()

    def _ended(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        """Begin the next attempt; one whose task failed leaves nothing to bring, and loses its lease."""
        if not task.cancelled() and task.exception() is not None:
            self._held.drop(attempt)
            print(f"{attempt.trace_id}: {task.exception()}", file=sys.stderr, flush=True)
        self._begin()
        self._free.set()


def _run_of(lease: dict[str, Any], recorder: MemoryRecorder) -> Run:
    spec = lease["spec"]
    task = Task(
        env=spec["env"],
        id=spec["task"],
        args=spec.get("args") or {},
        slug=spec.get("slug") or "",
        runtime_config=met_by_node(spec.get("runtime_config")),
        verifier=spec.get("verifier"),
    )
    return Run(
        task=task,
        trace=Trace(trace_id=lease["trace_id"]),
        job_id=lease["job_id"],
        group_id=spec.get("group_id"),
        attempt=spec.get("attempt", 0),
        training_progress=spec.get("training_progress"),
        recorder=recorder,
    )


def _limit(lease: dict[str, Any]) -> float | None:
    """Return the seconds that a rollout asks for, where it does."""
    limits = (lease["spec"].get("runtime_config") or {}).get("limits") or {}
    return None if limits.get("run_timeout_s") is None else float(lease["limit_seconds"])


def _fail(run: Run, error: Exception) -> None:
    """Record a rollout that could not even begin."""
    ours = isinstance(error, InfrastructureFault) or not isinstance(error, HudError)
    kind: FailureKind = "infrastructure" if ours else "environment"
    run.recorder.run_started(run)
    run.fail(kind, describe(error))
    run.recorder.run_ended(run)
