"""`Worker`: takes rollouts from a platform, plays them, and brings what they record while they are played.

The platform's own workers and those that join from other machines are the same; only where builds lie differs. An attempt
that does not come to its end leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hud import __version__
from hud.agents import Agent
from hud.client import Client
from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.environment.templates.runtime_config import met_by_node
from hud.errors import FailureKind, HudError, InfrastructureFault, NotFoundError, PlatformError
from hud.eval.rollouts import carry_out, describe
from hud.eval.run import Run
from hud.eval.subagents import close_made
from hud.fleet.attempt_recorder import AttemptRecorder
from hud.fleet.build_cache import BuildCache
from hud.fleet.environments import WarmEnvironments
from hud.fleet.submitted_agents import player_of
from hud.trace import Trace

RENEW_SECONDS = 2.0
"""Also how soon a cancelled rollout ends, and how old a step is at most when it is brought."""
LINGER_SECONDS = 0.02
PAUSE_SECONDS = 1.0
"""Between two tries to reach a platform that does not answer."""
STREAMED_AT_ONCE = 32
"""Most rollouts whose steps are brought at each renewal; the ones that waited longest come first."""
PER_MINUTE_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """Description of a worker, sent when it joins."""

    worker: str
    """Name under which it holds leases; of a worker on another machine, a secret."""
    name: str
    capacity: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class Playing:
    """One attempt that is being played."""

    given: dict[str, Any]
    recorder: AttemptRecorder
    task: asyncio.Task[None] | None = None
    first: bool = True
    """True while nothing of it was brought."""
    bringing: asyncio.Lock = field(default_factory=asyncio.Lock)


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
        self._playing: dict[str, Playing] = {}
        self._free = asyncio.Event()
        self._handing_back = False
        self._load = _Load()

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
        beside = [asyncio.create_task(self._renew()), asyncio.create_task(self._stream())]
        try:
            while not self.stopping.is_set():
                await self._take()
            await self._let_end()
        finally:
            for task in beside:
                task.cancel()
            await self._hand_back()
            await self.environments.close()
            with contextlib.suppress(HudError):
                await self._leases.post("/v2/fleet/leave", {"worker": self.place.worker})

    async def _join(self) -> None:
        body = {**vars(self.place), "rollouts": self.most, "version": __version__}
        told = False
        while True:
            try:
                await self.client.post("/v2/fleet/join", body)
                return
            except PlatformError as error:
                if error.status in (401, 403):
                    raise
                if not told:
                    self.say(f"{error} Trying again.")
                told = True
                await asyncio.sleep(PAUSE_SECONDS)

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
        body = {"worker": self.place.worker, "most": min(room, 256), "free": self._left()}
        if self._load.due():
            body["load"] = self._load.shown(len(self._playing))
        try:
            answer = await self._wait(self.client.post("/v2/fleet/take", body))
        except NotFoundError:
            await self._wait(self._join())
            return
        except PlatformError as error:
            if error.status in (401, 403):
                raise
            await self._wait(asyncio.sleep(PAUSE_SECONDS))
            return
        for given in (answer or {}).get("items", []):
            playing = Playing(given, AttemptRecorder(given["trace_id"]))
            self._playing[given["trace_id"]] = playing
            playing.task = asyncio.create_task(self._play(playing))
            playing.task.add_done_callback(partial(self._done, given["trace_id"]))
        self._obey(answer or {})

    def _left(self) -> dict[str, float]:
        """Return the amounts that no rollout here has asked for."""
        amounts = {
            name: float(most)
            for name, most in self.place.capacity.items()
            if isinstance(most, int | float) and not isinstance(most, bool)
        }
        for playing in self._playing.values():
            for name, used in playing.given["needs"].items():
                if name in amounts:
                    amounts[name] -= used
        return amounts

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

    async def _play(self, playing: Playing) -> None:
        """Play one rollout and bring what it recorded."""
        given = playing.given
        run = _run_of(given, playing.recorder)
        try:
            provider = self.environments.provider(given)
            player = player_of(given, self.gateway_url)
            try:
                await carry_out(run, player, provider, _limit(given), retries=0)
            finally:
                with contextlib.suppress(HudError):
                    await close_made(player)
                    await _closed(player)
        except asyncio.CancelledError:
            if self._handing_back:
                raise  # It goes back into the queue.
        except Exception as error:
            # Whatever it is, it is this rollout's: a worker that gave it up without a word would have it played again.
            _fail(run, error)
        again = run.failure_kind == "infrastructure"
        async with playing.bringing:
            events = playing.recorder.take_steps() + playing.recorder.take()
            params = {**self._lease(playing), "again": again, "first": playing.first}
            # Repeating it is harmless: only an attempt that holds the rollout is heard, and only once.
            place = f"/v2/fleet/finish/{given['trace_id']}"
            await self.client.post(place, events, params=params, retry=True)
        self._load.count(broken=run.failure_kind in ("infrastructure", "environment"))

    def _lease(self, playing: Playing) -> dict[str, Any]:
        return {"worker": self.place.worker, "attempt": playing.given["attempt"]}

    async def _bring_steps(self, playing: Playing) -> None:
        """Bring the steps that were recorded since they were brought last."""
        async with playing.bringing:
            steps = playing.recorder.take_steps()
            if not steps:
                return
            params = {**self._lease(playing), "first": playing.first}
            place = f"/v2/fleet/steps/{playing.given['trace_id']}"
            answer = await self.client.post(place, steps, params=params, retry=True)
            playing.first = False
        if not answer["taken"] and playing.task is not None:
            playing.task.cancel()

    async def _renew(self) -> None:
        """Keep hold of what is being played, and hear what is to be cancelled."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if not self._playing:
                continue
            held = {
                "worker": self.place.worker,
                "traces": list(self._playing),
                "load": self._load.shown(len(self._playing)),
            }
            try:
                answer = await self._leases.post("/v2/fleet/renew", held, retry=True)
            except HudError:
                continue  # The lease outlasts a short silence; a long one costs the rollouts, as it should.
            for trace in (*answer["cancel"], *answer["lost"]):
                playing = self._playing.get(trace)
                if playing is not None and playing.task is not None:
                    playing.task.cancel()
            self._obey(answer)

    async def _stream(self) -> None:
        """Bring the steps of what is being played. Slow where the platform is; leases do not wait for it."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            waiting = [
                one for one in self._playing.values() if one.recorder.waiting_since < math.inf
            ]
            waiting.sort(key=lambda one: one.recorder.waiting_since)
            for playing in waiting[:STREAMED_AT_ONCE]:
                with contextlib.suppress(HudError):
                    await self._bring_steps(playing)

    async def _let_end(self) -> None:
        """Wait until everything that is played is over, for as long as the notice allows."""
        until = time.monotonic() + self.notice
        if self._playing and self.notice > 0:
            self.say(f"Stopping: {len(self._playing)} rollouts may end; nothing more is taken.")
        while self._playing and time.monotonic() < min(until, time.monotonic() + self.notice):
            self._free.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._free.wait(), min(1.0, max(0.0, self.notice)))

    async def _hand_back(self) -> None:
        """Give back what is being played, then end it: a machine that has little time must not be waited for."""
        self._handing_back = True
        held = list(self._playing)
        if not held:
            return
        self.say(f"Handing back {len(held)} rollouts.")
        body = {"worker": self.place.worker, "traces": held}
        with contextlib.suppress(HudError):
            await self._leases.post("/v2/fleet/release", body, retry=True)
        tasks = [one.task for one in self._playing.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _done(self, trace_id: str, task: asyncio.Task[None]) -> None:
        self._playing.pop(trace_id, None)
        self._free.set()
        if not task.cancelled() and task.exception() is not None:
            print(f"{trace_id}: {task.exception()}", file=sys.stderr, flush=True)


class _Load:
    """Counts of a worker, as its node shows them."""

    def __init__(self) -> None:
        self.finished = self.broken = self.failures_in_a_row = 0
        self._ends: deque[float] = deque(maxlen=100_000)
        self._told = -math.inf

    def count(self, *, broken: bool) -> None:
        """Count a rollout that ended."""
        self.finished += 1
        self.broken += broken
        self.failures_in_a_row = self.failures_in_a_row + 1 if broken else 0
        self._ends.append(time.monotonic())

    def due(self) -> bool:
        """True where the platform heard nothing of it for a while."""
        return time.monotonic() - self._told >= RENEW_SECONDS

    def shown(self, running: int) -> dict[str, Any]:
        """Return the counts for the platform."""
        now = self._told = time.monotonic()
        while self._ends and self._ends[0] < now - PER_MINUTE_SECONDS:
            self._ends.popleft()
        return {
            "running": running,
            "finished": self.finished,
            "broken": self.broken,
            "failures_in_a_row": self.failures_in_a_row,
            "per_minute": float(len(self._ends)),
        }


def _run_of(given: dict[str, Any], recorder: MemoryRecorder) -> Run:
    spec = given["spec"]
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
        trace=Trace(trace_id=given["trace_id"]),
        job_id=given["job_id"],
        group_id=spec.get("group_id"),
        attempt=spec.get("attempt", 0),
        training_progress=spec.get("training_progress"),
        recorder=recorder,
    )


async def _closed(player: Agent) -> None:
    """Close an agent's connections to its model's server."""
    for one in (player, getattr(player, "model", None)):
        if (close := getattr(one, "aclose", None)) is not None:
            await close()


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
