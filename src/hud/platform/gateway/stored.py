"""Responses that were answered, kept so that a later one can go on from them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import sqlalchemy as sa

from hud.errors import NotFoundError
from hud.platform.store import tables
from hud.trace import ChatMessage

if TYPE_CHECKING:
    from hud.platform.store import Store


class StoredResponses:
    """The `responses` table."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def conversation(self, team: str, identifier: str) -> list[ChatMessage]:
        """Return the conversation up to and including a response, its instructions not among it."""
        row = await asyncio.to_thread(self._row, team, identifier)
        messages: list[ChatMessage] = orjson.loads(row.messages)
        return messages

    async def body(self, team: str, identifier: str) -> bytes:
        """Return a response as it was answered."""
        row = await asyncio.to_thread(self._row, team, identifier)
        return bytes(row.body)

    async def keep(self, team: str, body: dict[str, Any], messages: list[ChatMessage]) -> None:
        """Keep a response and the conversation that it ends."""
        await asyncio.to_thread(self._insert, team, body, messages)

    async def remove(self, team: str, identifier: str) -> None:
        """Forget a response."""
        await asyncio.to_thread(self._delete, team, identifier)

    def _row(self, team: str, identifier: str) -> sa.Row[Any]:
        table = tables.responses
        with self._store.read() as connection:
            row = connection.execute(
                sa.select(table).where(table.c.id == identifier, table.c.team_id == team)
            ).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no stored response {identifier!r}.")
        return row

    def _insert(self, team: str, body: dict[str, Any], messages: list[ChatMessage]) -> None:
        with self._store.begin() as connection:
            connection.execute(
                sa.insert(tables.responses).values(
                    id=body["id"],
                    team_id=team,
                    messages=orjson.dumps(messages),
                    body=orjson.dumps(body),
                    created_at=datetime.now(UTC),
                )
            )

    def _delete(self, team: str, identifier: str) -> None:
        self._row(team, identifier)
        table = tables.responses
        with self._store.begin() as connection:
            connection.execute(
                sa.delete(table).where(table.c.id == identifier, table.c.team_id == team)
            )
