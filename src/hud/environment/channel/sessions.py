"""Control sessions: one run of the environment each, connected to or parked."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator

from hud.environment.channel.framing import BAD_STATE, ChannelError
from hud.environment.channel.tracking import FileTracking
from hud.environment.environment import Environment
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault, RolloutError


class Session:
    """One run of the environment, and whether somebody is connected to it."""

    def __init__(self, run: EnvironmentRun, caller: Session | None = None) -> None:
        self.id = f"sess-{secrets.token_hex(4)}"
        self.token = secrets.token_hex(16)
        """What a client shows to the server of this session's tools."""
        self.run = run
        self.caller = caller
        """The session whose run calls this one's as its subagent; None where nobody does."""
        self.started = False
        self.live = True
        self.announced: dict[str, str] = {}
        """Its own capabilities by the names under which they were announced to a client that names no session."""
        self.tracking: FileTracking | None = None
        """Its files, for clients of other makers."""
        self._opening = asyncio.Lock()
        self._opened = caller is not None
        self._broken: RolloutError | None = None

    @property
    def is_open(self) -> bool:
        """True once the run is up."""
        return self._opened

    async def open(self) -> EnvironmentRun:
        """Return the run, brought up once; where that failed, it fails again."""
        async with self._opening:
            if self._broken is not None:
                raise self._broken
            if not self._opened:
                try:
                    await self.run.open()
                except RolloutError as error:
                    self._broken = error
                    raise
                self._opened = True
        return self.run


class Sessions:
    """The sessions of one environment."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._sessions: dict[str, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def find(self, session_id: str) -> Session | None:
        """Return a session, live or parked."""
        return self._sessions.get(session_id)

    def new(self) -> Session:
        """Return a new session, live."""
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
        """Return a parked session, live again."""
        session = self._sessions.get(session_id)
        if session is None:
            raise ChannelError(BAD_STATE, f"hello: unknown session {session_id}")
        if session.live:
            raise ChannelError(BAD_STATE, f"hello: session {session_id} has a live connection")
        session.live = True
        return session

    def adopt(self) -> Session:
        """Return the only parked session with a started task, live again."""
        parked = [one for one in self._sessions.values() if one.started and not one.live]
        if not parked:
            raise ChannelError(BAD_STATE, "no task in progress")
        if len(parked) > 1:
            names = ", ".join(one.id for one in parked)
            raise ChannelError(BAD_STATE, f"several tasks are parked; name a session: {names}")
        parked[0].live = True
        return parked[0]

    async def leave(self, session: Session) -> None:
        """The connection is gone: a started task stays parked, anything else ends."""
        session.live = False
        await self._drop_nested(session)
        if not session.started:
            with contextlib.suppress(EnvironmentFault):  # Nobody is left to hear of it.
                await self.drop(session)

    async def drop(self, session: Session) -> None:
        """End a session, its run and the runs nested in it."""
        self._sessions.pop(session.id, None)
        await self._drop_nested(session)
        session.started = False
        await session.run.close()

    async def _drop_nested(self, session: Session) -> None:
        for other in self:
            if other.caller is session:
                with contextlib.suppress(EnvironmentFault):  # Nobody is left to hear of it.
                    await self.drop(other)

    async def close(self) -> None:
        """End every session."""
        for session in list(self._sessions.values()):
            with contextlib.suppress(EnvironmentFault):
                await self.drop(session)
