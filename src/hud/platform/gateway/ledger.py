"""Ledger of every request's usage, written off the hot path.

Entries wait in memory and are written together, at most half a second later; a process that is killed loses those
that wait, which is why nothing is ever decided by this table.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.errors import StoreError
from hud.platform.store import tables
from hud.trace import Usage, new_id

if TYPE_CHECKING:
    from hud.platform.store import Store

_log = logging.getLogger("hud.gateway")

EVERY_SECONDS = 0.5
MOST_WAITING = 50_000
"""Entries kept while the store cannot be written; older ones make room."""


@dataclass
class Meter:
    """Tokens of one request, counted while they come."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    checkpoint: str | None = None
    guess: int = 0
    """About how many tokens went by, where a provider was not asked to count them."""

    def count(self, usage: Usage) -> None:
        """Take over the counts that a provider has sent so far."""
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens = usage.completion_tokens
        self.cached_tokens = usage.cached_tokens

    @property
    def charged(self) -> int:
        """Tokens that count against limits, estimated where the provider reports none."""
        return self.prompt_tokens + self.completion_tokens or self.guess


class Ledger:
    """The `requests` table, written in batches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[dict[str, Any]] = []
        self._due: asyncio.AbstractEventLoop | None = None
        """The loop that will write what waits; one that ended before it did is another than the running one."""
        self._writing = threading.Lock()

    def add(self, meter: Meter, **columns: Any) -> None:
        """Write the row of one request soon: its meter's counts, and the other columns. To be called on an event loop."""
        row = {
            "id": new_id(),
            "checkpoint": meter.checkpoint,
            "prompt_tokens": meter.prompt_tokens,
            "completion_tokens": meter.completion_tokens,
            "cached_tokens": meter.cached_tokens,
            "created_at": datetime.now(UTC),
        }
        self._waiting.append({**row, **columns})
        loop = asyncio.get_running_loop()
        if self._due is not loop:
            self._due = loop
            loop.call_later(EVERY_SECONDS, lambda: loop.run_in_executor(None, self.flush))

    def flush(self) -> None:
        """Write what waits, now. Blocks."""
        with self._writing:
            self._due = None
            rows, self._waiting = self._waiting, []
            if not rows:
                return
            try:
                with self._store.begin() as connection:
                    connection.execute(sa.insert(tables.requests), rows)
            except StoreError as error:
                _log.warning("The record of %d requests waits for the store: %s", len(rows), error)
                self._waiting = [*rows, *self._waiting][-MOST_WAITING:]
