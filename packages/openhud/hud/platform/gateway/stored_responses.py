"""Stored responses, which later requests can continue (`previous_response_id`)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import NotFoundError
from hud.platform.store import tables
from hud.trace import ChatMessage

if TYPE_CHECKING:
    from hud.platform.store import Store


class StoredResponses:
    """The `responses` table. Methods block."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def conversation(self, team: str, identifier: str) -> list[ChatMessage]:
        """Return the conversation up to and including a response, without its instructions."""
        messages: list[ChatMessage] = exact_json.loads(self._row(team, identifier).messages)
        return messages

    def body(self, team: str, identifier: str) -> bytes:
        """Return the body of a response."""
        return bytes(self._row(team, identifier).body)

    def keep(self, team: str, body: dict[str, Any], messages: list[ChatMessage]) -> None:
        """Store a response and its conversation."""
        with self._store.begin() as connection:
            connection.execute(
                sa.insert(tables.responses).values(
                    id=body["id"],
                    team_id=team,
                    messages=exact_json.dumps(messages),
                    body=exact_json.dumps(body),
                    created_at=datetime.now(UTC),
                )
            )

    def remove(self, team: str, identifier: str) -> None:
        """Delete a response."""
        self._row(team, identifier)
        table = tables.responses
        with self._store.begin() as connection:
            connection.execute(
                sa.delete(table).where(table.c.id == identifier, table.c.team_id == team)
            )

    def _row(self, team: str, identifier: str) -> sa.Row[Any]:
        table = tables.responses
        with self._store.read() as connection:
            row = connection.execute(
                sa.select(table).where(table.c.id == identifier, table.c.team_id == team)
            ).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no stored response {identifier!r}.")
        return row
