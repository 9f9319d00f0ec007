"""Runtime sessions: environments on this server for agents elsewhere; one process a session, reached through tunnels."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hud.errors import HudError, NotFoundError, OverloadedError
from hud.fleet.environments import served
from hud.trace import new_id, plain
from hud_platform.environments.idle_limit import Held, Holding
from hud_platform.environments.registry import RunnableEnvironment

IDLE_SECONDS = 600.0
"""Time without a tunnel after which a session ends, because a crashed client does not close it."""
MOST_SESSIONS = 64
"""Maximum number of concurrent sessions of one team."""


@dataclass(eq=False)
class Session(Held):
    """A running environment, with the team that may connect."""

    team: str
    environment: RunnableEnvironment
    address: asyncio.Future[tuple[str, int]]
    tunnels: int = 0
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def busy(self) -> bool:
        """True while a tunnel is open."""
        return self.tunnels > 0

    async def reached(self) -> tuple[str, int]:
        """Wait until the environment is up and return its address.
        Raises `HudError` if the start fails or the session ends before.
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
    """Runtime sessions of one server."""

    def __init__(self, stopping: asyncio.Event) -> None:
        super().__init__(stopping, IDLE_SECONDS)

    def start(self, team: str, environment: RunnableEnvironment) -> Session:
        """Start an environment; tunnels may be opened before it is up. Raises `OverloadedError` for too many sessions."""
        if len(self.of_team(team)) >= MOST_SESSIONS:
            raise OverloadedError(
                f"This team has {MOST_SESSIONS} environments running; end some first.", 5.0
            )
        address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        session = Session(new_id(), team, environment, address)
        self.begin(session, self._run(session, environment))
        return session

    def find(self, team: str, session_id: str) -> Session:
        """Return a team's session. Raises `NotFoundError` for an unknown id."""
        session = self.open.get(plain(session_id))
        if session is None or session.team != team:
            raise NotFoundError(f"There is no runtime session {session_id!r}.")
        session.used = time.monotonic()
        return session

    def of_team(self, team: str) -> list[Session]:
        """Return a team's sessions, oldest first."""
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
                session.address.exception()  # Retrieved here: there may be no waiting caller.
                await session.ending.wait()
