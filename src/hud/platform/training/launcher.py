"""Training runs and evaluations that are launched from the dashboard: each a process of this server's.

A page may be closed; the process goes on. When the server stops, its processes are asked to stop first: a training run
ends after what is in flight and can be resumed. What was measured is in the store; what is here is only how the
processes are doing. A run whose server died is marked when the next one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from hud.client.presence import presence
from hud.errors import ConflictError, NotFoundError
from hud.eval.runtimes.interpreter import SHOWN, told_exit
from hud.platform.access import Identity, Scope
from hud.platform.access.passes import Passes
from hud.platform.config import PlatformConfig
from hud.platform.models.records import ModelRecord
from hud.platform.serving.token_engine import OverloadedError
from hud.platform.store import Store
from hud.platform.training.runs import TrainingRuns
from hud.trace import new_id, plain

MOST_OF_TEAM = 2
"""Processes of one team at a time. Each plays many rollouts at once."""
MOST = 8
"""Of all teams together."""
MOST_KEPT = 100
"""Ended ones that are remembered."""
STOP_SECONDS = 15.0
"""Seconds that processes have to finish work in flight when the server stops."""
PASS_SECONDS = 30 * 86_400.0
LONGEST_LINE = 1 << 20

Kind = Literal["training", "evaluation"]
_SCOPES: dict[Kind, Scope] = {"training": "train", "evaluation": "run"}


@dataclass(eq=False)
class Launch:
    """One process that was launched, and how it is doing."""

    id: str
    team: str
    kind: Kind
    model_id: str
    model: str
    title: str
    work: dict[str, Any] = field(repr=False)
    """Arguments of the launched process."""
    created_at: datetime
    status: str = "starting"
    """starting, running, stopping; then finished, stopped, interrupted or failed."""
    sentence: str | None = None
    """Reason of its failure, or its last message."""
    run_id: str | None = None
    """Of the training run, once it is open."""
    jobs: list[str] = field(default_factory=list)
    phase: dict[str, Any] = field(default_factory=dict)
    """`{phase, step, total, done}` of the rollouts that are being played."""
    revision: int = 0
    """Grows with everything that is heard."""
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        """True once its process has ended and what it left is settled."""
        return self.status in ("finished", "stopped", "interrupted", "failed")


class Launches:
    """The processes that one server has launched."""

    def __init__(
        self, config: PlatformConfig, store: Store, passes: Passes, stopping: asyncio.Event
    ) -> None:
        self.config = config
        self.store = store
        self.passes = passes
        self.stopping = stopping
        self.name = presence("launcher")
        self._known: dict[str, Launch] = {}

    def launch(
        self, who: Identity, kind: Kind, model: ModelRecord, tasks: str, work: dict[str, Any]
    ) -> Launch:
        """Start a process that does `work` with a model, on `tasks` by their name. Call on the event loop.

        Raises `ConflictError` where one trains the model already, `OverloadedError` where there are too many.
        """
        self._check_room(who, kind, model)
        made = Launch(
            id=new_id(),
            team=who.team_id,
            kind=kind,
            model_id=model.id,
            model=model.slug,
            title=f"{model.slug} on {tasks}",
            work={"kind": kind, **work},
            created_at=datetime.now(UTC),
        )
        self._known[made.id] = made
        self._forget()
        made.task = asyncio.create_task(self._carry_out(made, self._variables(who, kind)))
        return made

    def find(self, team: str, launch_id: str) -> Launch:
        """Return a launch of a team. Raises `NotFoundError` for one that is not there."""
        found = self._known.get(plain(launch_id))
        if found is None or found.team != team:
            raise NotFoundError("Nothing of that id was launched since this server started.")
        return found

    def of_team(self, team: str) -> list[Launch]:
        """Return what a team has launched, newest first."""
        return [one for one in reversed(self._known.values()) if one.team == team]

    def of_run(self, team: str, run_id: str) -> Launch | None:
        """Return the newest launch of a training run."""
        return next((one for one in self.of_team(team) if one.run_id == run_id), None)

    def training(self, model_id: str) -> Launch | None:
        """Return the process that trains a model."""
        for one in self._known.values():
            if one.model_id == model_id and one.kind == "training" and not one.over:
                return one
        return None

    def stop(self, launch: Launch) -> None:
        """Ask once to end after what is in flight; ask again to cancel that, too."""
        if launch.over or launch.process is None or launch.process.stdin is None:
            return
        launch.status = "stopping"
        launch.revision += 1
        with contextlib.suppress(OSError, RuntimeError):
            launch.process.stdin.write(b"stop\n")

    async def work(self) -> None:
        """Mark what an earlier server left; at the platform's stop, stop everything in order."""
        lost = "The server ended while it ran. Resume it: it goes on from its last checkpoint."
        await asyncio.to_thread(TrainingRuns.mark_lost, self.store, lost)
        await self.stopping.wait()
        open_ones = [one for one in self._known.values() if not one.over]
        tasks = [one.task for one in open_ones if one.task is not None]
        for one in open_ones:
            self.stop(one)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for one in open_ones:
            if one.task in late:
                _end(one.process)
        if late:
            await asyncio.wait(late)

    def _check_room(self, who: Identity, kind: Kind, model: ModelRecord) -> None:
        if self.stopping.is_set():
            raise ConflictError("This server is stopping; launch it once it is back.")
        if kind == "training" and self.training(model.id) is not None:
            raise ConflictError(
                f"Model {model.slug!r} is being trained already. Stop that run, or train a fork."
            )
        open_ones = [one for one in self._known.values() if not one.over]
        theirs = sum(one.team == who.team_id for one in open_ones)
        if theirs >= MOST_OF_TEAM or len(open_ones) >= MOST:
            most = MOST_OF_TEAM if theirs >= MOST_OF_TEAM else MOST
            raise OverloadedError(
                f"{most} training runs and evaluations are running already, which is the most; stop one, or wait.",
                30.0,
            )

    def _forget(self) -> None:
        over = [one.id for one in self._known.values() if one.over]
        for identifier in over[: max(0, len(over) - MOST_KEPT)]:
            del self._known[identifier]

    def _variables(self, who: Identity, kind: Kind) -> dict[str, str]:
        """Return what the process sees: where the platform is, and a pass to act for who launched it."""
        config = self.config
        named = {"HUD_HOME": str(config.home)}
        if config.database is not None:
            named["HUD_DATABASE_URL"] = config.database
        if not config.keys:
            return {**os.environ, **named}
        actor = replace(who, scopes=frozenset({_SCOPES[kind]}))
        return {
            **{name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")},
            **named,
            "HUD_API_URL": config.url,
            "HUD_GATEWAY_URL": config.url,
            "HUD_API_KEY": self.passes.make(actor, PASS_SECONDS),
        }

    async def _carry_out(self, launch: Launch, variables: dict[str, str]) -> None:
        try:
            process = launch.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "hud.platform.training.launched_process",
                env=variables,
                stdin=asyncio.subprocess.PIPE,  # It stops when this process is gone, however that ends.
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                start_new_session=True,
            )
        except OSError as error:
            await self._settle(launch, "failed", f"No process could be started: {error}.")
            return
        words = bytearray()
        try:
            listening = asyncio.create_task(self._listen(launch, process))
            reading = asyncio.create_task(_keep_tail(process, words))
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.write(orjson.dumps(launch.work) + b"\n")
                await process.stdin.drain()
            ended = await listening
            status = await process.wait()
            # What it left behind may hold its output open.
            _end(process)
            await asyncio.wait({reading}, timeout=2.0)
            reading.cancel()
        finally:
            _end(process)
        if ended is None:
            said = told_exit(status, words.decode("utf-8", "replace"))
            ended = "failed", f"It broke off: {said}."
        await self._settle(launch, *ended)

    async def _listen(
        self, launch: Launch, process: asyncio.subprocess.Process
    ) -> tuple[str, str | None] | None:
        """Hear what the process tells; return how it ended, where it says so."""
        assert process.stdout is not None
        ended: tuple[str, str | None] | None = None
        async for line in process.stdout:
            heard = orjson.loads(line)
            launch.revision += 1
            if launch.status == "starting":
                launch.status = "running"
            match heard["event"]:
                case "run":
                    launch.run_id = heard["run_id"]
                    await self._record(launch, "running", {"error": None, **self._marks(launch)})
                case "job":
                    launch.jobs.append(heard["job_id"])
                case "phase":
                    launch.phase = {name: heard[name] for name in heard if name != "event"}
                case "note":
                    launch.sentence = heard["text"]
                case "ended":
                    ended = "stopped" if heard["stopped"] else "finished", None
                case "failed":
                    ended = "failed", heard["sentence"]
        return ended

    def _marks(self, launch: Launch) -> dict[str, Any]:
        """Return what is kept with the run: who watches it, and what resuming it takes."""
        work = launch.work
        named = ("name", "taskset_id", "version")
        sources = {
            "tasks": {name: work["tasks"][name] for name in named},
            "held_out": [{name: one[name] for name in named} for one in work["held_out"]],
        }
        return {"launched": {"by": self.name, **sources}}

    async def _settle(self, launch: Launch, status: str, sentence: str | None) -> None:
        stopped_by_server = self.stopping.is_set() and status != "finished"
        if stopped_by_server:
            status, sentence = (
                "interrupted",
                "The server was stopped while it ran. Resume it: it goes on from its last checkpoint.",
            )
        launch.sentence = sentence or launch.sentence
        launch.work, launch.process, launch.phase = {}, None, {}
        if launch.run_id is not None and status in ("failed", "interrupted"):
            await self._record(launch, status, {"error": sentence})
        launch.status = status
        launch.revision += 1

    async def _record(self, launch: Launch, status: str, state: dict[str, Any]) -> None:
        assert launch.run_id is not None
        runs = TrainingRuns(self.store, launch.team)
        await asyncio.to_thread(runs.change, launch.run_id, status, state)


async def _keep_tail(process: asyncio.subprocess.Process, words: bytearray) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(65536):
        words += chunk
        del words[:-SHOWN]


def _end(process: asyncio.subprocess.Process | None) -> None:
    """End a process and everything that it started."""
    if process is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
