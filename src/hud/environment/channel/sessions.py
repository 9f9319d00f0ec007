"""Control sessions: one run of the environment each, connected to or parked."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from hud.environment.channel.framing import BAD_STATE, ChannelError
from hud.environment.environment import Environment
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault


class Session:
    """One run of the environment, and whether somebody is connected to it."""

    def __init__(self, environment: Environment) -> None:
        self.id = f"sess-{secrets.token_hex(4)}"
        self.run = EnvironmentRun(environment)
        self.started = False
        self.live = True
        self._opening = asyncio.Lock()
        self._opened = False

    async def open(self) -> EnvironmentRun:
        """Return the run, its initialize hooks called once."""
        async with self._opening:
            if not self._opened:
                await self.run.open()
                self._opened = True
        return self.run


class Sessions:
    """The sessions of one environment."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._sessions: dict[str, Session] = {}

    def new(self) -> Session:
        """Return a new session, live."""
        session = Session(self.environment)
        self._sessions[session.id] = session
        return session

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
        if not session.started:
            with contextlib.suppress(EnvironmentFault):  # Nobody is left to hear of it.
                await self.drop(session)

    async def drop(self, session: Session) -> None:
        """End a session, and its run."""
        self._sessions.pop(session.id, None)
        session.started = False
        await session.run.close()

    async def close(self) -> None:
        """End every session."""
        for session in list(self._sessions.values()):
            with contextlib.suppress(EnvironmentFault):
                await self.drop(session)
