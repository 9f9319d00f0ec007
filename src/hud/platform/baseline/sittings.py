"""`Sittings`: the people who take tasks on this server now. They live in this process, and end with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from pydantic import ValidationError

from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.errors import HudError, NotFoundError, UsageError
from hud.eval.rollouts import carry_out, describe
from hud.eval.run import Run
from hud.fleet.environments import WarmEnvironments
from hud.platform.baseline.jobs import close_job, group_of, next_attempt, open_job
from hud.platform.baseline.sitting import BrowserPlayer, Sitting
from hud.platform.environments.registry import Environments
from hud.platform.serving.token_engine import OverloadedError
from hud.platform.store import Store
from hud.platform.store.ingest import ingest
from hud.trace import Trace, new_id, plain

_log = logging.getLogger(__name__)

LONGEST_SECONDS = 4 * 3600.0
"""Of a sitting, however busy."""
MOST_SITTINGS = 4
"""Of one person at a time."""
MOST_OF_TEAM = 32
SAVE_SECONDS = 1.0


class StoreRecorder(MemoryRecorder):
    """Brings what it hears straight into the store."""

    def __init__(self, store: Store, team: str) -> None:
        super().__init__()
        self._store, self._team = store, team
        self._one_at_a_time = asyncio.Lock()

    async def flush(self) -> None:
        """Wait until everything recorded is in the store."""
        async with self._one_at_a_time:
            data = self.take()
            if data:
                await asyncio.to_thread(ingest, self._store, data, self._team)


class Sittings:
    """The sittings of one server."""

    def __init__(self, store: Store, stopping: asyncio.Event) -> None:
        self.store = store
        self.stopping = stopping
        self._open: dict[str, Sitting] = {}

    def of_team(self, team: str) -> list[Sitting]:
        """Return a team's sittings, as they began."""
        return [sitting for sitting in self._open.values() if sitting.team == team]

    def of_person(self, team: str, user: str) -> list[Sitting]:
        """Return a person's own sittings."""
        return [sitting for sitting in self.of_team(team) if sitting.user == user]

    def find(self, team: str, user: str, sitting_id: str) -> Sitting:
        """Return a person's own sitting. Raises `NotFoundError` for any other."""
        found = self._open.get(plain(sitting_id))
        if found is None or (found.team, found.user) != (team, user):
            raise NotFoundError(f"You have no sitting {sitting_id!r}; it is over, or not yours.")
        return found

    async def begin(
        self, team: str, user: str, taskset: dict[str, Any], row: dict[str, Any]
    ) -> Sitting:
        """Sit a person down at a task; where he sits there already, that sitting goes on.

        Raises `NotFoundError` where the task's environment has no build to run, `OverloadedError` for too many.
        """
        for sitting in self.of_person(team, user):
            if (sitting.taskset["id"], sitting.slug) == (taskset["id"], row["name"]):
                return sitting
        if len(self.of_person(team, user)) >= MOST_SITTINGS:
            raise OverloadedError(f"You sit at {MOST_SITTINGS} tasks; end one of them first.", 5.0)
        if len(self.of_team(team)) >= MOST_OF_TEAM:
            raise OverloadedError(f"{MOST_OF_TEAM} people of this team take tasks now.", 5.0)
        task = _task(row)
        given = await asyncio.to_thread(self._environments, team, task)
        job_id = await asyncio.to_thread(open_job, self.store, team, user, taskset)
        attempt = await asyncio.to_thread(next_attempt, self.store, job_id, task.slug)
        run = Run(
            task=task,
            trace=Trace(trace_id=new_id(), extra={"user_id": user}),
            job_id=job_id,
            group_id=group_of(job_id, task.slug),
            attempt=attempt,
            recorder=StoreRecorder(self.store, team),
        )
        sitting = Sitting(run, team, user, taskset)
        self._open[sitting.id] = sitting
        sitting.task = asyncio.create_task(self._hold(sitting, given))
        return sitting

    async def leave(self, sitting: Sitting) -> None:
        """End a sitting without an answer; nothing is measured."""
        if sitting.task is not None:
            sitting.task.cancel()
            await asyncio.wait({sitting.task})

    async def work(self) -> None:
        """Wait for the platform's stop, and end every sitting then."""
        await self.stopping.wait()
        await asyncio.gather(*(self.leave(sitting) for sitting in list(self._open.values())))

    async def _hold(self, sitting: Sitting, given: dict[str, Any]) -> None:
        """Carry a sitting's run out, and leave nothing behind."""
        warm = WarmEnvironments(1)
        run = sitting.run
        saving = asyncio.create_task(_save(run))
        try:
            player = BrowserPlayer(sitting)
            await carry_out(run, player, warm.provider(given), LONGEST_SECONDS, retries=0)
        except asyncio.CancelledError:
            pass  # The person left; the run says that it was cancelled.
        except Exception as error:
            # What the environment cannot do is in the run, and raised besides; what is ours, in the log too.
            if not isinstance(error, HudError):
                _log.exception("A human baseline broke off.")
            if not run.failed:
                run.fail("infrastructure", describe(error))
        finally:
            sitting.state = "grading"
            sitting.leave_orders()
            saving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saving
            await run.recorder.flush()
            await warm.close()
            del self._open[sitting.id]
            sitting.state = "over"
            others = {one.run.job_id for one in self._open.values()}
            if run.job_id is not None and run.job_id not in others:
                await asyncio.to_thread(close_job, self.store, run.job_id)

    def _environments(self, team: str, task: Task) -> dict[str, Any]:
        """Return how to run a task's environment, and its verifier's."""
        known = Environments(self.store, team)
        names = {task.env, task.env if task.verifier is None else task.verifier.env}
        return {
            "problem": None,
            "environments": {name: known.runnable(name).shown() for name in names},
        }


async def _save(run: Run) -> None:
    """Bring what was recorded so far into the store, again and again: a server that dies loses a second."""
    while True:
        await asyncio.sleep(SAVE_SECONDS)
        await run.recorder.flush()


def _task(row: dict[str, Any]) -> Task:
    kept = ("args", "runtime_config", "verifier", "agent_config")
    given = {name: row[name] for name in kept if row.get(name) is not None}
    try:
        return Task(env=row["env"], id=row["scenario"], slug=row["name"], **given)
    except ValidationError as error:
        raise UsageError(
            f"Task {row['name']!r} cannot be played: {error.errors()[0]['msg']}."
        ) from None
