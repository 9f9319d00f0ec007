"""`SessionRegistry`: open human-baseline sessions of this server. They are in memory and end with the process."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pydantic import ValidationError

from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.errors import HudError, NotFoundError, OverloadedError, StoreError, UsageError
from hud.eval.rollout_failure import describe
from hud.eval.rollouts import play_here
from hud.eval.run import Run
from hud.fleet.environments import WarmEnvironments
from hud.trace import Trace, new_id, plain
from hud_dashboard.human_baseline.jobs import close_job, group_of, next_attempt, open_job
from hud_dashboard.human_baseline.session import BaselineSession, BrowserPlayer, MoveSizes
from hud_platform.environments.registry import Environments
from hud_platform.store import Store
from hud_platform.store.ingest import ingest

_log = logging.getLogger("hud.dashboard")

LONGEST_SECONDS = 4 * 3600.0
"""Maximum duration of a session."""
MOST_SESSIONS = 4
"""Maximum number of open sessions of one person."""
MOST_OF_TEAM = 32
SAVE_SECONDS = 1.0


class StoreRecorder(MemoryRecorder):
    """Recorder that writes directly to the store."""

    def __init__(self, store: Store, team: str) -> None:
        super().__init__()
        self._store, self._team = store, team
        self._one_at_a_time = asyncio.Lock()

    async def flush(self) -> None:
        """Wait until everything recorded is in the store, also what a cancelled `flush` was writing.

        What could not be written is written by the next one.
        """
        # Shielded: cancelling does not end the thread that writes, and the lock must be held until it has ended.
        await asyncio.shield(asyncio.ensure_future(self._write()))

    async def _write(self) -> None:
        async with self._one_at_a_time:
            data = self.take()
            if not data:
                return
            try:
                await asyncio.to_thread(ingest, self._store, data, self._team, session=True)
            except BaseException:
                self._add(data)
                raise


class SessionRegistry:
    """Open human-baseline sessions of one server."""

    def __init__(self, store: Store, stopping: asyncio.Event) -> None:
        self.store = store
        self.stopping = stopping
        self._open: dict[str, BaselineSession] = {}
        self._moves = MoveSizes()
        self._beginning = asyncio.Lock()

    def of_team(self, team: str) -> list[BaselineSession]:
        """Return a team's sessions, oldest first."""
        return [session for session in self._open.values() if session.team == team]

    def of_person(self, team: str, user: str) -> list[BaselineSession]:
        """Return a person's own sessions."""
        return [session for session in self.of_team(team) if session.user == user]

    def find(self, team: str, user: str, session_id: str) -> BaselineSession:
        """Return a person's own session. Raises `NotFoundError` for any other."""
        session = self._open.get(plain(session_id))
        if session is None or (session.team, session.user) != (team, user):
            raise NotFoundError(
                f"You have no session {session_id!r}: it is over, or another user's."
            )
        return session

    async def begin(
        self, team: str, user: str, taskset: dict[str, Any], row: dict[str, Any]
    ) -> BaselineSession:
        """Start a session for a person and a task, or return the open one.
        Raises `NotFoundError` if the task's environment has no successful build, `OverloadedError` for too many sessions.
        """
        async with self._beginning:  # Requests at once would each find room.
            return await self._begin(team, user, taskset, row)

    async def _begin(
        self, team: str, user: str, taskset: dict[str, Any], row: dict[str, Any]
    ) -> BaselineSession:
        for session in self.of_person(team, user):
            if (session.taskset["id"], session.slug) == (taskset["id"], row["name"]):
                return session
        if len(self.of_person(team, user)) >= MOST_SESSIONS:
            raise OverloadedError(
                f"You have {MOST_SESSIONS} open sessions; end one of them first.", 5.0
            )
        if len(self.of_team(team)) >= MOST_OF_TEAM:
            raise OverloadedError(
                f"This team has {MOST_OF_TEAM} open sessions, which is the most.", 5.0
            )
        task = _task(row)
        environments = await asyncio.to_thread(self._environments, team, task)
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
        session = BaselineSession(run, team, user, taskset, self._moves)
        self._open[session.id] = session
        session.task = asyncio.create_task(self._hold(session, environments))
        return session

    async def leave(self, session: BaselineSession) -> None:
        """End a session without an answer; no score is recorded."""
        if session.task is not None:
            session.task.cancel()
            await asyncio.wait({session.task})

    async def work(self) -> None:
        """On shutdown, close every open session."""
        await self.stopping.wait()
        await asyncio.gather(*(self.leave(session) for session in list(self._open.values())))

    async def _hold(self, session: BaselineSession, environments: dict[str, Any]) -> None:
        """Play a session's run and clean up after it."""
        warm = WarmEnvironments(1)
        run = session.run
        saving = asyncio.create_task(_save(run))
        try:
            player = BrowserPlayer(session)
            await play_here(run, player, warm.provider(environments), LONGEST_SECONDS, retries=0)
        except asyncio.CancelledError:
            pass  # The session was left; the run is recorded as cancelled.
        except Exception as error:
            # Errors of the environment are recorded in the run; errors of the platform are logged as well.
            if not isinstance(error, HudError):
                _log.exception("A human baseline ended unexpectedly.")
            if not run.failed:
                run.fail("infrastructure", describe(error))
        finally:
            session.state = "grading"
            session.leave_orders()
            saving.cancel()
            await asyncio.wait({saving})
            try:
                await run.recorder.flush()
                # Before the session is over: a score on the page belongs to a completed job.
                others = {other.run.job_id for other in self._open.values() if other is not session}
                if run.job_id is not None and run.job_id not in others:
                    await asyncio.to_thread(close_job, self.store, run.job_id)
            finally:
                await warm.close()
                del self._open[session.id]
                self._moves.release(session.team, session.size)
                session.state = "over"

    def _environments(self, team: str, task: Task) -> dict[str, Any]:
        """Return the launch data of a task's environment and of its verifier's."""
        registry = Environments(self.store, team)
        names = {task.env, task.env if task.verifier is None else task.verifier.env}
        return {
            "problem": None,
            "environments": {name: registry.runnable(name).shown() for name in names},
        }


async def _save(run: Run) -> None:
    """Write recorded data to the store every `SAVE_SECONDS`, the maximum loss of a crash."""
    while True:
        await asyncio.sleep(SAVE_SECONDS)
        try:
            await run.recorder.flush()
        except StoreError as error:
            _log.warning("A human baseline is not saved yet: %s", error)


def _task(row: dict[str, Any]) -> Task:
    optional = ("args", "runtime_config", "verifier", "agent_config")
    columns = {name: row[name] for name in optional if row.get(name) is not None}
    try:
        return Task(env=row["env"], id=row["scenario"], slug=row["name"], **columns)
    except ValidationError as error:
        raise UsageError(
            f"Task {row['name']!r} cannot be played: {error.errors()[0]['msg']}."
        ) from None
