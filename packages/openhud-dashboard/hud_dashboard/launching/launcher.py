"""Launcher of training runs and evaluations from the dashboard: each is a child process of this server.

Processes do not depend on open pages. On shutdown the server requests every process to stop: a training run finishes
work in flight and can be resumed. Measurements are in the store; this module holds only the state of processes.
On its next start, the server marks runs of a crashed server as interrupted.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal

from hud import exact_json
from hud.errors import ConflictError, NotFoundError, OverloadedError
from hud.eval.runtimes.interpreter import told_exit
from hud.processes.child import Child
from hud.processes.presence import presence
from hud.trace import new_id, plain
from hud_platform.access import Identity, Scope
from hud_platform.access.passes import Passes
from hud_platform.models.records import ModelRecord
from hud_platform.process.config import PlatformConfig
from hud_platform.store import Store
from hud_platform.training.runs import TrainingRuns

MOST_OF_TEAM = 2
"""Maximum number of concurrent processes of one team. Each plays many rollouts concurrently."""
MOST = 8
"""Maximum number of concurrent processes of all teams."""
MOST_KEPT = 100
"""Ended launches that stay listed."""
STOP_SECONDS = 15.0
"""Seconds for processes to finish work in flight when the server stops."""
PASS_SECONDS = 30 * 86_400.0
LONGEST_LINE = 1 << 20

Kind = Literal["training", "evaluation"]
_SCOPES: dict[Kind, Scope] = {"training": "train", "evaluation": "run"}


@dataclass(eq=False)
class Launch:
    """A launched process and its state."""

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
    """`starting`, `running` or `stopping`; at the end `finished`, `stopped`, `interrupted` or `failed`."""
    sentence: str | None = None
    """Reason of the failure, or the last message of the process."""
    run_id: str | None = None
    """Id of the training run; None before it has started."""
    jobs: list[str] = field(default_factory=list)
    phase: dict[str, Any] = field(default_factory=dict)
    """Progress of the rollouts in flight: `{phase, step, total, done}`."""
    revision: int = 0
    """Incremented with every event of the process."""
    process: Child | None = field(default=None, repr=False)
    orders: asyncio.WriteTransport | None = field(default=None, repr=False)
    """Standard input of the process."""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def over(self) -> bool:
        """True after the process has ended and its result is recorded."""
        return self.status in ("finished", "stopped", "interrupted", "failed")


class Launches:
    """Launched processes of one server."""

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
        """Start a process that runs `work` with a model; `tasks` is the display name. Call on the event loop.
        Raises `ConflictError` if a process trains the model already, `OverloadedError` beyond the maximum of processes.
        """
        self._check_room(who, kind, model)
        made = Launch(
            id=new_id(),
            team=who.team_id,
            kind=kind,
            model_id=model.id,
            model=model.slug,
            title=f"{model.slug} {kind} on {_shown(tasks)}",
            work={"kind": kind, **work},
            created_at=datetime.now(UTC),
        )
        self._known[made.id] = made
        self._forget()
        made.task = asyncio.create_task(self._carry_out(made, self._variables(who, kind)))
        return made

    def find(self, team: str, launch_id: str) -> Launch:
        """Return a launch of a team. Raises `NotFoundError` for an unknown id."""
        launch = self._known.get(plain(launch_id))
        if launch is None or launch.team != team:
            raise NotFoundError("Nothing of that id was launched since this server started.")
        return launch

    def of_team(self, team: str) -> list[Launch]:
        """Return the launches of a team, newest first."""
        return [launch for launch in reversed(self._known.values()) if launch.team == team]

    def of_run(self, team: str, run_id: str) -> Launch | None:
        """Return the newest launch of a training run."""
        return next((launch for launch in self.of_team(team) if launch.run_id == run_id), None)

    def training(self, model_id: str) -> Launch | None:
        """Return the launch that trains a model, if there is one."""
        for launch in self._known.values():
            if launch.model_id == model_id and launch.kind == "training" and not launch.over:
                return launch
        return None

    def stop(self, launch: Launch) -> None:
        """Request a stop after the work in flight; a second call cancels that work as well."""
        if launch.over or launch.orders is None:
            return
        launch.status = "stopping"
        launch.revision += 1
        launch.orders.write(b"stop\n")

    async def work(self) -> None:
        """Mark runs of a crashed server as interrupted; on shutdown, stop every process."""
        lost = "The server ended during this run. Resume it: it continues from its last checkpoint."
        await asyncio.to_thread(TrainingRuns.mark_lost, self.store, lost)
        await self.stopping.wait()
        open_ones = [launch for launch in self._known.values() if not launch.over]
        tasks = [launch.task for launch in open_ones if launch.task is not None]
        for launch in open_ones:
            self.stop(launch)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for launch in open_ones:
            if launch.task in late and launch.process is not None:
                launch.process.kill()
        if late:
            await asyncio.wait(late)

    def _check_room(self, who: Identity, kind: Kind, model: ModelRecord) -> None:
        if self.stopping.is_set():
            raise ConflictError("This server is stopping; launch it once it is back.")
        if kind == "training" and self.training(model.id) is not None:
            raise ConflictError(
                f"Model {model.slug!r} is being trained already. Stop that run, or train a fork."
            )
        open_ones = [launch for launch in self._known.values() if not launch.over]
        theirs = sum(launch.team == who.team_id for launch in open_ones)
        if theirs >= MOST_OF_TEAM or len(open_ones) >= MOST:
            most = MOST_OF_TEAM if theirs >= MOST_OF_TEAM else MOST
            raise OverloadedError(
                f"{most} training runs and evaluations are running already, which is the most; stop one, or wait.",
                30.0,
            )

    def _forget(self) -> None:
        over = [launch.id for launch in self._known.values() if launch.over]
        for identifier in over[: max(0, len(over) - MOST_KEPT)]:
            del self._known[identifier]

    def _variables(self, who: Identity, kind: Kind) -> dict[str, str]:
        """Return the environment variables of the process: the platform's address, and a pass of the launching user."""
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
            child = launch.process = Child(
                [sys.executable, "-m", "hud_dashboard.launching.launched_process"],
                env=variables,
                stdin=subprocess.PIPE,  # Closed when this process ends, even by SIGKILL: a request to stop.
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            await self._settle(launch, "failed", f"No process could be started: {error}.")
            return
        async with child:
            errors = await child.errors()
            launch.orders = await child.input()
            launch.orders.write(exact_json.dumps(launch.work) + b"\n")
            ended = await self._follow(launch, await child.output(LONGEST_LINE))
            status = await child.ended()
            child.kill()  # What outlives it may hold its output open.
            words = await errors.text()
        if ended is None:
            ended = "failed", f"It ended unexpectedly: {told_exit(status, words)}."
        await self._settle(launch, *ended)

    async def _follow(
        self, launch: Launch, output: asyncio.StreamReader
    ) -> tuple[str, str | None] | None:
        """Read the events of a process; return its final status and sentence, None without a final event."""
        ended: tuple[str, str | None] | None = None
        async for line in output:
            event = exact_json.loads(line)
            launch.revision += 1
            if launch.status == "starting":
                launch.status = "running"
            match event["event"]:
                case "run":
                    launch.run_id = event["run_id"]
                    await self._record(launch, "running", {"error": None, **self._marks(launch)})
                case "job":
                    launch.jobs.append(event["job_id"])
                case "phase":
                    launch.phase = {name: event[name] for name in event if name != "event"}
                case "note":
                    launch.sentence = event["text"]
                case "ended":
                    ended = "stopped" if event["stopped"] else "finished", None
                case "failed":
                    ended = "failed", event["sentence"]
        return ended

    def _marks(self, launch: Launch) -> dict[str, Any]:
        """Return the state stored with a run: the server that launched it, and its tasks, which resuming needs."""
        work = launch.work
        named = ("name", "taskset_id", "version")
        sources = {
            "tasks": {name: work["tasks"][name] for name in named},
            "held_out": [{name: source[name] for name in named} for source in work["held_out"]],
        }
        return {"launched": {"by": self.name, **sources}}

    async def _settle(self, launch: Launch, status: str, sentence: str | None) -> None:
        stopped_by_server = self.stopping.is_set() and status != "finished"
        if stopped_by_server:
            status, sentence = (
                "interrupted",
                "The server was stopped during this run. Resume it: it continues from its last checkpoint.",
            )
        launch.sentence = sentence or launch.sentence
        launch.work, launch.process, launch.orders, launch.phase = {}, None, None, {}
        if launch.run_id is not None and status in ("failed", "interrupted"):
            await self._record(launch, status, {"error": sentence})
        launch.status = status
        launch.revision += 1

    async def _record(self, launch: Launch, status: str, state: dict[str, Any]) -> None:
        assert launch.run_id is not None
        runs = TrainingRuns(self.store, launch.team)
        await asyncio.to_thread(runs.change, launch.run_id, status, state)


def _shown(tasks: str) -> str:
    """Return the display name of tasks: a taskset's name, or the last two parts of a file's path."""
    place = PurePath(tasks)
    return str(PurePath(*place.parts[-2:])) if place.is_absolute() else tasks
