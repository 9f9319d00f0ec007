"""Environments that run here while their agent plays elsewhere: a process for each session, reached through tunnels.

They live in this process and end with it: a session holds nothing that outlives its client's rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hud.errors import HudError, NotFoundError
from hud.fleet.environments import served
from hud.platform.environments import RunnableEnvironment
from hud.platform.serving.tokens import OverloadedError
from hud.trace import new_id, plain

if TYPE_CHECKING:
    from hud.platform.platform import Platform

IDLE_SECONDS = 600.0
"""How long a session without a tunnel stays: clients that died never say so."""
SWEEP_SECONDS = 15.0
MOST_SESSIONS = 64
"""Of one team, at a time."""


@dataclass
class Session:
    """One environment, and who may reach it."""

    id: str
    team: str
    environment: RunnableEnvironment
    address: asyncio.Future[tuple[str, int]]
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    tunnels: int = 0
    used: float = field(default_factory=time.monotonic)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class RuntimeSessions:
    """The sessions of one server."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._open: dict[str, Session] = {}

    def start(self, team: str, environment: RunnableEnvironment) -> Session:
        """Start an environment; it comes up while its tunnels are already asked for."""
        if len(self.of_team(team)) >= MOST_SESSIONS:
            raise OverloadedError(
                f"This team has {MOST_SESSIONS} environments running; end some first.", 5.0
            )
        address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        session = Session(new_id(), team, environment, address)
        session.task = asyncio.create_task(self._serve(session, environment))
        self._open[session.id] = session
        return session

    def find(self, team: str, session_id: str) -> Session:
        """Return a team's session. Raises `NotFoundError` for one that is not there."""
        session = self._open.get(plain(session_id))
        if session is None or session.team != team:
            raise NotFoundError(f"There is no runtime session {session_id!r}.")
        session.used = time.monotonic()
        return session

    def of_team(self, team: str) -> list[Session]:
        """Return a team's sessions, as they were started."""
        return [session for session in self._open.values() if session.team == team]

    async def end(self, session: Session) -> None:
        """End a session and its environment."""
        session.ending.set()
        if session.task is not None:
            await asyncio.wait({session.task})

    async def work(self) -> None:
        """End sessions that nobody uses any more; at the platform's stop, all of them."""
        stopping = self.platform.stopping
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), SWEEP_SECONDS)
            long_ago = time.monotonic() - IDLE_SECONDS
            for session in list(self._open.values()):
                if session.tunnels == 0 and session.used < long_ago:
                    session.ending.set()
        await asyncio.gather(*(self.end(session) for session in list(self._open.values())))

    async def _serve(self, session: Session, environment: RunnableEnvironment) -> None:
        try:
            place = served(
                environment.source, environment.python, environment.variables, environment.image
            )
            async with place as address:
                session.address.set_result(address)
                await session.ending.wait()
        except HudError as error:
            if not session.address.done():
                session.address.set_exception(error)
                session.address.exception()  # Whoever asks is told; nobody may.
                await session.ending.wait()
        finally:
            self._open.pop(session.id, None)
