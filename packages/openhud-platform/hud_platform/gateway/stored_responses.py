"""Stored responses, which later requests can continue (`previous_response_id`).

A team's responses have a size together, and each has an age: the oldest are deleted first. A response counts with its whole
conversation, since each turn of one stores all turns before it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import NotFoundError
from hud.trace import ChatMessage
from hud_platform.store import tables

if TYPE_CHECKING:
    from hud_platform.store import Store

MOST_BYTES = 1 << 28
"""Largest size of a team's responses together."""
KEPT_DAYS = 30
_OVERHEAD_BYTES = 1 << 10
"""Bytes that each response counts with beyond its content."""
_LEFT_SHARE = 0.9
"""Share of `MOST_BYTES` that is left by a deletion, so that not every response needs one."""
_EXPIRY_SECONDS = 3600.0
_SIZE = (
    sa.func.length(tables.responses.c.messages)
    + sa.func.length(tables.responses.c.body)
    + _OVERHEAD_BYTES
)


@dataclass
class _Stored:
    """Responses of one team, as this process counts them: another server on the store adds to them, too."""

    size: int
    counted_at: float
    """Monotonic time, in seconds."""


class StoredResponses:
    """The `responses` table. Methods block."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stored: dict[str, _Stored] = {}
        self._lock = threading.Lock()

    def conversation(self, team: str, identifier: str) -> list[ChatMessage]:
        """Return the conversation up to and including a response, without its instructions."""
        messages: list[ChatMessage] = exact_json.loads(self._row(team, identifier).messages)
        return messages

    def body(self, team: str, identifier: str) -> bytes:
        """Return the body of a response."""
        return bytes(self._row(team, identifier).body)

    def keep(self, team: str, body: dict[str, Any], messages: list[ChatMessage]) -> None:
        """Store a response and its conversation; delete the team's oldest ones where all are too large together."""
        conversation, written = exact_json.dumps(messages), exact_json.dumps(body)
        size = len(conversation) + len(written) + _OVERHEAD_BYTES
        with self._lock, self._store.begin() as connection:
            stored = self._counted(connection, team)
            if stored.size + size > MOST_BYTES:
                self._delete_oldest(connection, team, max(0, int(MOST_BYTES * _LEFT_SHARE) - size))
            connection.execute(
                sa.insert(tables.responses).values(
                    id=body["id"],
                    team_id=team,
                    messages=conversation,
                    body=written,
                    created_at=datetime.now(UTC),
                )
            )
            self._stored[team].size += size

    def remove(self, team: str, identifier: str) -> None:
        """Delete a response."""
        row = self._row(team, identifier)
        table = tables.responses
        with self._lock, self._store.begin() as connection:
            deleted = connection.execute(
                sa.delete(table).where(table.c.id == identifier, table.c.team_id == team)
            )
            if deleted.rowcount and team in self._stored:
                self._stored[team].size -= len(row.messages) + len(row.body) + _OVERHEAD_BYTES

    def _counted(self, connection: sa.Connection, team: str) -> _Stored:
        """Return the team's count; hourly from the table, without its expired responses."""
        stored, now = self._stored.get(team), time.monotonic()
        if stored is not None and now - stored.counted_at < _EXPIRY_SECONDS:
            return stored
        table = tables.responses
        connection.execute(
            sa.delete(table).where(table.c.team_id == team, table.c.created_at < _expiry())
        )
        total = sa.select(sa.func.coalesce(sa.func.sum(_SIZE), 0)).where(table.c.team_id == team)
        self._stored[team] = _Stored(int(connection.execute(total).scalar_one()), now)
        return self._stored[team]

    def _delete_oldest(self, connection: sa.Connection, team: str, most: int) -> None:
        """Delete the team's oldest responses until the others have at most `most` bytes."""
        table = tables.responses
        newest_first = connection.execute(
            sa.select(table.c.id, _SIZE)
            .where(table.c.team_id == team)
            .order_by(table.c.created_at.desc(), table.c.id)
        )
        left = 0
        surplus: list[str] = []
        for identifier, size in newest_first:
            if surplus or left + size > most:
                surplus.append(identifier)
            else:
                left += size
        for start in range(0, len(surplus), 500):
            batch = surplus[start : start + 500]
            connection.execute(sa.delete(table).where(table.c.id.in_(batch)))
        self._stored[team].size = left

    def _row(self, team: str, identifier: str) -> sa.Row[Any]:
        table = tables.responses
        with self._store.read() as connection:
            row = connection.execute(
                sa.select(table).where(
                    table.c.id == identifier,
                    table.c.team_id == team,
                    table.c.created_at >= _expiry(),
                )
            ).one_or_none()
        if row is None:
            raise NotFoundError(
                f"There is no stored response {identifier!r}. Responses are kept for {KEPT_DAYS} days, and a team's "
                f"newest {MOST_BYTES >> 20} MiB."
            )
        return row


def _expiry() -> datetime:
    """Return the moment before which responses have expired."""
    return datetime.now(UTC) - timedelta(days=KEPT_DAYS)
