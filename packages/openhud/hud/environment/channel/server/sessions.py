"""Control sessions: each holds a run of the environment, and is connected or parked."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterator
from functools import cached_property
from typing import Any

from hud.environment.channel.framing import BAD_STATE, ChannelError
from hud.environment.channel.server.file_tracking import FileTracking
from hud.environment.environment import Environment
from hud.environment.processes.run_processes import RunProcesses
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault

PARKED_SECONDS = 3600.0
"""Lifetime of a parked task, in seconds; its run keeps its resources (a browser, a shell) meanwhile."""


class Session:
    """A run of the environment, with its connection state."""

    def __init__(self, run: EnvironmentRun, caller: Session | None = None) -> None:
        self.id = f"sess-{os.urandom(4).hex()}"
        self.run = run
        self.caller = caller
        """The session that called this one as a subagent; None for a top-level session."""
        self.started = False
        self.live = True
        self.parks = True
        """False for OpenHUD's client: it repeats interrupted runs and never resumes one."""
        self.expiry: asyncio.TimerHandle | None = None
        """Timer that ends the session while it is parked."""
        self.announced: dict[str, str] = {}
        """Capabilities by the names announced to a client that names no session."""
        self.tracking: FileTracking | None = None
        """File tracking, for third-party clients."""
        self._opening: asyncio.Task[EnvironmentRun] | None = None

    @cached_property
    def token(self) -> str:
        """Bearer token of clients of this session's tools server."""
        return os.urandom(16).hex()

    @property
    def is_open(self) -> bool:
        """True once the run is open."""
        task = self._opening
        if task is None:
            return self.caller is not None  # The caller's run has opened it.
        return task.done() and not task.cancelled() and task.exception() is None

    async def open(self) -> EnvironmentRun:
        """Return the run, opened at the first call; a failure to open is raised at every call.

        Cancelling a call does not cancel the opening.
        """
        if self.is_open:
            return self.run
        if self._opening is None:
            self._opening = asyncio.create_task(self.run.open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Close the run, also while it is opening."""
        self.started = False
        self.live = False
        if self.expiry is not None:
            self.expiry.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
            if not self._opening.cancelled():
                self._opening.exception()  # The error was raised to the callers already.
        await self.run.close()


class Sessions:
    """The sessions of one environment."""

    def __init__(
        self,
        environment: Environment,
        *,
        parked_seconds: float = PARKED_SECONDS,
        one_run: bool = False,
    ) -> None:
        self.environment = environment
        self._processes = RunProcesses() if one_run else None
        self.parked_seconds = parked_seconds
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def new(self) -> Session:
        session = Session(EnvironmentRun(self.environment))
        # Not of later sessions: where several runs share this process, what is left may be another's.
        session.run.processes, self._processes = self._processes, None
        self._sessions[session.id] = session
        return session

    async def nested(self, caller: Session, name: str) -> Session:
        """Return a new session for a subagent's run, nested in the run of `caller`."""
        session = Session(await (await caller.open()).nested(name), caller)
        self._sessions[session.id] = session
        return session

    def within(self, session: Session) -> list[Session]:
        """Return `session` and all sessions nested in it."""
        nested = [session]
        for other in self:  # Callers precede their subagents.
            if other.caller in nested:
                nested.append(other)
        return nested

    def resume(self, session_id: str) -> Session:
        """Return a parked session as connected. Raises `ChannelError` for one that is unknown or connected."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ChannelError(BAD_STATE, f"hello: unknown session {session_id}")
        if session.live:
            raise ChannelError(BAD_STATE, f"hello: session {session_id} has a live connection")
        return _back(session)

    def adopt(self) -> Session:
        """Return the only parked session with a started task as connected. Raises `ChannelError` for none or several."""
        parked = [
            parked_session
            for parked_session in self._sessions.values()
            if parked_session.started and not parked_session.live
        ]
        if not parked:
            raise ChannelError(BAD_STATE, "no task in progress")
        if len(parked) > 1:
            names = ", ".join(parked_session.id for parked_session in parked)
            raise ChannelError(BAD_STATE, f"several tasks are parked; name a session: {names}")
        return _back(parked[0])

    async def leave(self, session: Session) -> None:
        """Handle a lost connection: a started task is parked for `parked_seconds`, everything else ends."""
        session.live = False
        if session.started and session.parks:
            await self._drop_nested(session)
            loop = asyncio.get_running_loop()
            session.expiry = loop.call_later(
                self.parked_seconds, lambda: self._apart(self._drop_quietly(session))
            )
        else:
            await self._drop_quietly(session)

    async def drop(self, session: Session) -> None:
        """End a session, its run and the nested runs; cancelling the caller does not stop it."""
        if self._sessions.pop(session.id, None) is None:
            return
        await asyncio.shield(self._apart(self._end(session)))

    async def _end(self, session: Session) -> None:
        await self._drop_nested(session)
        await session.close()

    def _apart(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the end of a session in a separate task, which `close` waits for."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # The error belongs to the callers that waited; there may be none.

    async def _drop_nested(self, session: Session) -> None:
        for other in self:
            if other.caller is session:
                await self._drop_quietly(other)

    async def _drop_quietly(self, session: Session) -> None:
        with contextlib.suppress(EnvironmentFault):  # No caller is left to receive it.
            await self.drop(session)

    async def close(self) -> None:
        """End every session."""
        for session in self:
            await self._drop_quietly(session)
        while self._ending:
            await asyncio.wait(self._ending)


def _back(session: Session) -> Session:
    """Mark a parked session as connected again."""
    session.live = True
    if session.expiry is not None:
        session.expiry.cancel()
    return session
