"""Sessions of Tinker's clients: a process with its training and sampling clients, kept alive by heartbeats."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hud.errors import NotFoundError, PlatformError
from hud.trace import new_id
from hud_platform.access.identity import Identity
from hud_platform.access.limits import TooManyRequests

LOST_SECONDS = 120.0
"""Time without a heartbeat after which a session's models are released; clients send one every 10 s."""
MOST_SESSIONS = 1000
"""Sessions of a team that are remembered; the oldest ended one is forgotten first."""
LONGEST_REASON = 200
"""Characters of a session's end that are remembered."""
MOST_SAMPLERS = 1000
"""Sampling clients of a session that are listed; older ones can be used as before."""


@dataclass
class TinkerSession:
    """A session."""

    id: str
    team: str
    holder: str
    """Holder of the key that began it, who alone goes on with it."""
    user_metadata: dict[str, Any] = field(default_factory=dict)
    display_name: str | None = None
    sdk_version: str = ""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    runs: list[str] = field(default_factory=list)
    """Names of its training clients' models."""
    samplers: list[str] = field(default_factory=list)
    finished: str | None = None
    """Reason of the end that the client reported."""
    released: bool = False
    """True once the leases of its models were released, until the next heartbeat."""
    seen: float = field(default_factory=time.monotonic)

    def add_sampler(self, identifier: str) -> None:
        """Note a sampling client; the newest `MOST_SAMPLERS` are remembered."""
        self.samplers = [*self.samplers[1 - MOST_SAMPLERS :], identifier]

    @property
    def lost(self) -> bool:
        """True if its models should be released."""
        late = time.monotonic() - self.seen > LOST_SECONDS
        return not self.released and (late or self.finished is not None)


class ClientSessions:
    """Sessions of every team, in memory: a restarted server has none."""

    def __init__(self) -> None:
        self._known: dict[str, TinkerSession] = {}

    def create(self, who: Identity, **values: Any) -> TinkerSession:
        """Begin a session. Raises `TooManyRequests` while the team has too many open ones."""
        sessions = [session for session in self._known.values() if session.team == who.team_id]
        surplus = len(sessions) - MOST_SESSIONS + 1
        if surplus > 0:
            ended = [session.id for session in sessions if session.released][:surplus]
            if len(ended) < surplus:
                raise TooManyRequests(
                    f"Your team has {len(sessions):,} open sessions of Tinker's clients, which is the limit. One that sends "
                    f"nothing ends after {LOST_SECONDS:.0f} s.",
                    LOST_SECONDS,
                )
            for identifier in ended:
                del self._known[identifier]
        made = TinkerSession(f"tinker-{new_id()[:12]}", who.team_id, who.holder, **values)
        self._known[made.id] = made
        return made

    def get(self, session_id: str, team: str) -> TinkerSession:
        """Return a session. Raises `NotFoundError` for one that this process does not know."""
        session = self._known.get(session_id)
        if session is None or session.team != team:
            raise NotFoundError(
                f"There is no session {session_id!r} here: the server was started again since it began. Save with "
                "save_state, and begin a new one with create_training_client_from_state_with_optimizer."
            )
        return session

    def of_holder(self, session_id: str, who: Identity) -> TinkerSession:
        """Return a session of this key. Raises `PlatformError` 403 for one that another key of the team began."""
        session = self.get(session_id, who.team_id)
        if session.holder != who.holder:
            raise PlatformError(
                f"Another key of your team began the session {session_id!r}; make a ServiceClient.",
                403,
            )
        return session

    def open(self, session_id: str, who: Identity) -> TinkerSession:
        """Return a session of this key that has not ended. Raises `PlatformError` 410 for one that has."""
        session = self.of_holder(session_id, who)
        if session.finished is not None:
            raise PlatformError(f"The session {session_id!r} has ended; make a ServiceClient.", 410)
        session.seen, session.released = time.monotonic(), False
        return session

    def of_team(self, team: str) -> list[TinkerSession]:
        """Return a team's sessions, newest first."""
        return [session for session in reversed(self._known.values()) if session.team == team]

    def lost(self) -> list[TinkerSession]:
        """Return the sessions whose models should be released."""
        return [session for session in self._known.values() if session.lost]
