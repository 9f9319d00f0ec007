"""Ledger of every request's usage, written off the hot path.
Entries are buffered in memory and written in batches, at most half a second later. A killed process loses its
buffer, so limits and other decisions must not depend on this table.
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
from hud.trace import Usage, new_id
from hud_platform.store import tables

if TYPE_CHECKING:
    from hud_platform.access.limits import TokenBudget
    from hud_platform.store import Store

_log = logging.getLogger("hud.gateway")

CLIENT_GONE = 499
"""HTTP status recorded for a request whose client has disconnected."""
EVERY_SECONDS = 0.5
MOST_WAITING = 50_000
"""Maximum number of buffered entries while the store is unavailable; the oldest are dropped first."""
LONGEST_ANSWER = 16_384
"""Tokens that are reserved for an answer of a provider's model whose request states no limit."""
MOST_TOKENS = 1 << 28
"""Maximum token count of one request that is taken over from a provider: sums of a few fit the database's integers."""
_LONGEST_NAME = 300


@dataclass
class Meter:
    """Token counts of one request, updated during its stream."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    checkpoint: str | None = None
    guess: int = 0
    """Estimated number of streamed tokens, for providers that report no counts."""
    budget: TokenBudget | None = None
    """Token reservation of the request; None: without limits."""

    async def reserve(
        self, prompt: int, stated: int | None, longest: int, choices: int = 1
    ) -> int | None:
        """Reserve the tokens of a request that begins, and return the bound of each answer; see `TokenBudget.reserve`."""
        if self.budget is None:
            return None
        return await self.budget.reserve(prompt, stated, longest, choices)

    async def begin_again(self) -> None:
        """Give back the reservation of a request that is sent once more, in another dialect."""
        self.guess = 0
        if self.budget is not None:
            await self.budget.settle(0)

    def count(self, usage: Usage) -> None:
        """Update the counts with those that a provider has sent so far."""
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens = usage.completion_tokens
        self.cached_tokens = usage.cached_tokens

    def estimated(self, prompt: int) -> tuple[int, int]:
        """Return the tokens of the prompt and of the answer so far, estimated where the provider has not said.

        `prompt`: the estimate of the prompt's, which is part of `guess`.
        """
        sampled = self.completion_tokens or max(0, self.guess - prompt)
        return self.prompt_tokens or (prompt if self.guess else 0), sampled

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
        """Event loop with a scheduled write. If it closed before the write, the running loop schedules a new one."""
        self._writing = threading.Lock()

    def add(self, meter: Meter, **columns: Any) -> None:
        """Buffer the row of one request: its meter's counts, and the other columns. Call on an event loop."""
        row = {
            "id": new_id(),
            "checkpoint": meter.checkpoint,
            "prompt_tokens": meter.prompt_tokens,
            "completion_tokens": meter.completion_tokens,
            "cached_tokens": meter.cached_tokens,
            "created_at": datetime.now(UTC),
        }
        # One row that the database refuses would take its whole batch with it.
        model = columns["model"].replace("\0", "\ufffd")[:_LONGEST_NAME]
        self._waiting.append({**row, **columns, "model": model})
        loop = asyncio.get_running_loop()
        if self._due is not loop:
            self._due = loop
            loop.call_later(EVERY_SECONDS, self._write, loop)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_in_executor(None, self.flush)
        except RuntimeError:  # The interpreter ends, and its threads before this loop.
            self.flush()

    def flush(self) -> None:
        """Write buffered entries now. Blocks."""
        with self._writing:
            self._due = None
            rows, self._waiting = self._waiting, []
            if not rows:
                return
            try:
                with self._store.begin() as connection:
                    connection.execute(sa.insert(tables.requests), rows)
            except StoreError as error:
                _log.warning(
                    "The usage of %d requests could not be written yet: %s", len(rows), error
                )
                self._waiting = [*rows, *self._waiting][-MOST_WAITING:]
