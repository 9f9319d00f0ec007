"""Control sessions: one run of the environment each, connected to or parked."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Iterator
from typing import Any

from hud.environment.channel.framing import BAD_STATE, ChannelError
from hud.environment.channel.server.file_tracking import FileTracking
from hud.environment.environment import Environment
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault

PARKED_SECONDS = 3600.0
"""Limit for a parked task, in seconds; its run holds its resources (a browser, a shell) meanwhile."""


class Session:
    """One run of the environment, and whether somebody is connected to it."""

    def __init__(self, run: EnvironmentRun, caller: Session | None = None) -> None:
        self.id = f"sess-{secrets.token_hex(4)}"
        self.token = secrets.token_hex(16)
        """Token of a client for the server of this session's tools."""
        self.run = run
        self.caller = caller
        """The session whose run calls this one's as its subagent; None where nobody does."""
        self.started = False
        self.live = True
        self.parks = True
        """False for our own client's: it repeats a run that was interrupted, and never comes back to one."""
        self.expiry: asyncio.TimerHandle | None = None
        """Ends it, where it is parked."""
        self.announced: dict[str, str] = {}
        """Its own capabilities by the names under which they were announced to a client that names no session."""
        self.tracking: FileTracking | None = None
        """Its files, for clients of other makers."""
        self._opening: asyncio.Task[EnvironmentRun] | None = None

    @property
    def is_open(self) -> bool:
        """True once the run is up."""
        if self._opening is None:
            return self.caller is not None
        task = self._opening
        return task.done() and not task.cancelled() and task.exception() is None

    async def open(self) -> EnvironmentRun:
        """Return the run, brought up once; where that failed, it fails again.

        A call that is cancelled meanwhile leaves it to come up for the next one.
        """
        if self.is_open:
            return self.run
        if self._opening is None:
            self._opening = asyncio.create_task(self.run.open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Bring the run down, also where it was still coming up."""
        self.started = False
        self.live = False
        if self.expiry is not None:
            self.expiry.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
            if not self._opening.cancelled():
                self._opening.exception()  # Whoever was there to hear of it has heard.
        await self.run.close()


class Sessions:
    """The sessions of one environment."""

    def __init__(self, environment: Environment, *, parked_seconds: float = PARKED_SECONDS) -> None:
        self.environment = environment
        self.parked_seconds = parked_seconds
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def new(self) -> Session:
        session = Session(EnvironmentRun(self.environment))
        self._sessions[session.id] = session
        return session

    async def nested(self, caller: Session, name: str) -> Session:
        """Return a new session for a subagent's run, nested in the run of `caller`."""
        session = Session(await (await caller.open()).nested(name), caller)
        self._sessions[session.id] = session
        return session

    def within(self, session: Session) -> list[Session]:
        """Return `session`, and those of the subagents that were called in it, by whomever."""
        found = [session]
        for other in self:  # Callers come before those whom they call.
            if other.caller in found:
                found.append(other)
        return found

    def resume(self, session_id: str) -> Session:
        """Return a parked session, live again. Raises `ChannelError` for one that is unknown or has a connection."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ChannelError(BAD_STATE, f"hello: unknown session {session_id}")
        if session.live:
            raise ChannelError(BAD_STATE, f"hello: session {session_id} has a live connection")
        return _back(session)

    def adopt(self) -> Session:
        """Return the only parked session with a started task, live again. Raises `ChannelError` for none or several."""
        parked = [one for one in self._sessions.values() if one.started and not one.live]
        if not parked:
            raise ChannelError(BAD_STATE, "no task in progress")
        if len(parked) > 1:
            names = ", ".join(one.id for one in parked)
            raise ChannelError(BAD_STATE, f"several tasks are parked; name a session: {names}")
        return _back(parked[0])

    async def leave(self, session: Session) -> None:
        """The connection is gone: a started task stays parked for a while, anything else ends."""
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
        """End a session, its run and the runs nested in it; whoever is cancelled meanwhile does not stop it."""
        if self._sessions.pop(session.id, None) is not None:
            await asyncio.shield(self._apart(self._end(session)))

    async def _end(self, session: Session) -> None:
        await self._drop_nested(session)
        await session.close()

    def _apart(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what ends a session in a task of its own, which `close` waits for."""
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # It was for whoever waited; nobody may be left.

    async def _drop_nested(self, session: Session) -> None:
        for other in self:
            if other.caller is session:
                await self._drop_quietly(other)

    async def _drop_quietly(self, session: Session) -> None:
        with contextlib.suppress(EnvironmentFault):  # Nobody is left to hear of it.
            await self.drop(session)

    async def close(self) -> None:
        """End every session."""
        for session in self:
            await self._drop_quietly(session)
        while self._ending:
            await asyncio.wait(self._ending)


def _back(session: Session) -> Session:
    """Have somebody connected to a parked session again."""
    session.live = True
    if session.expiry is not None:
        session.expiry.cancel()
    return session
