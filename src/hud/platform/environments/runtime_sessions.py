"""Environments that run here while their agent plays elsewhere: a process for each session, reached through tunnels."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hud.errors import HudError, NotFoundError
from hud.fleet.environments import served
from hud.platform.environments.idle_limit import Held, Holding
from hud.platform.environments.registry import RunnableEnvironment
from hud.platform.serving.token_engine import OverloadedError
from hud.trace import new_id, plain

IDLE_SECONDS = 600.0
"""Seconds for which a session without a tunnel is kept: a client that died does not close it."""
MOST_SESSIONS = 64
"""Of one team, at a time."""


@dataclass(eq=False)
class Session(Held):
    """One environment, and who may reach it."""

    team: str
    environment: RunnableEnvironment
    address: asyncio.Future[tuple[str, int]]
    tunnels: int = 0
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def busy(self) -> bool:
        """True while an agent plays in it."""
        return self.tunnels > 0

    async def reached(self) -> tuple[str, int]:
        """Return the environment's address as soon as it is up.

        Raises `HudError` where it does not come up, or its session ends before.
        """
        ending = asyncio.ensure_future(self.ending.wait())
        first: set[asyncio.Future[Any]] = {self.address, ending}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
        if not self.address.done():
            raise NotFoundError("The session ended before its environment was up.")
        return self.address.result()


class RuntimeSessions(Holding[Session]):
    """The sessions of one server."""

    def __init__(self, stopping: asyncio.Event) -> None:
        super().__init__(stopping, IDLE_SECONDS)

    def start(self, team: str, environment: RunnableEnvironment) -> Session:
        """Start an environment; its tunnels may be asked for before it is up. Raises `OverloadedError` for too many."""
        if len(self.of_team(team)) >= MOST_SESSIONS:
            raise OverloadedError(
                f"This team has {MOST_SESSIONS} environments running; end some first.", 5.0
            )
        address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        session = Session(new_id(), team, environment, address)
        self.begin(session, self._run(session, environment))
        return session

    def find(self, team: str, session_id: str) -> Session:
        """Return a team's session. Raises `NotFoundError` for one that is not there."""
        session = self.open.get(plain(session_id))
        if session is None or session.team != team:
            raise NotFoundError(f"There is no runtime session {session_id!r}.")
        session.used = time.monotonic()
        return session

    def of_team(self, team: str) -> list[Session]:
        """Return a team's sessions, as they were started."""
        return [session for session in self.open.values() if session.team == team]

    async def _run(self, session: Session, environment: RunnableEnvironment) -> None:
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
