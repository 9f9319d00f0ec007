"""Policies of sources: what is redacted before imported runs are stored, how long they stay, and whether they may be trained on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from hud.errors import UsageError
from hud.exchange.redaction import KEYS, Redaction
from hud.trace.recorded_time import now_microseconds
from hud_platform.process.background import Service
from hud_platform.store import Store, tables
from hud_platform.store.ingest import to_be_indexed
from hud_platform.store.queries import in_parts

HOUR = 3600.0
DAY = 86_400_000_000
"""A day in microseconds."""
LONGEST_DAYS = 36_500
_OWN = "jsonl"
"""Source whose runs OpenHUD recorded, in another store: nothing of them is redacted by default."""
_OF_RUNS = (
    *(tables.steps, tables.samples, tables.spans, tables.outcomes, tables.trainer_logprobs),
    *(tables.trained_runs, tables.runs),
)
"""Tables with rows of a run, its own last."""
_REFERENCES = (
    tables.labels.c.subject_id,
    *(tables.comparisons.c.left_id, tables.comparisons.c.right_id),
)
"""Columns with the ids of runs that people rated."""


def policy_of(store: Store, team: str, source: str) -> dict[str, Any]:
    """Return a source's policy: `redact` (rules), `keep_days` (None: for ever) and `may_train`."""
    table = tables.source_policies
    row = store.row(sa.select(table).where(table.c.team_id == team, table.c.source == source))
    if row is None:
        redact = [] if source == _OWN else [KEYS]
        return {"source": source, "redact": redact, "keep_days": None, "may_train": True}
    names = ("source", "redact", "keep_days", "may_train")
    return {name: getattr(row, name) for name in names}


def set_policy(
    store: Store, team: str, source: str, redact: list[str], keep_days: int | None, may_train: bool
) -> dict[str, Any]:
    """Set a source's policy. Redaction holds for runs that come; the others for stored runs, too.

    Raises `UsageError` for a rule that is no regular expression, and for a number of days out of range.
    """
    Redaction(redact)
    if not 0 < len(source) <= 32:
        raise UsageError("The name of a source has 1 to 32 characters.")
    if keep_days is not None and not 1 <= keep_days <= LONGEST_DAYS:
        raise UsageError(f"Runs are kept for 1 to {LONGEST_DAYS} days, or for ever.")
    values = {"redact": redact, "keep_days": keep_days, "may_train": may_train}
    table, runs = tables.source_policies, tables.runs
    own = sa.and_(table.c.team_id == team, table.c.source == source)
    with store.begin() as connection:
        connection.execute(sa.delete(table).where(own))
        connection.execute(sa.insert(table).values(team_id=team, source=source, **values))
        connection.execute(
            sa.update(runs)
            .where(runs.c.team_id == team, runs.c.source == source)
            .values(may_train=None if may_train else False)
        )
    remove_expired(store)
    return {"source": source, **values}


def remove_expired(store: Store) -> int:
    """Delete the imported runs whose time is over, with their steps, tokens, outcomes, labels and comparisons; returns their number."""
    policies = store.rows(
        sa.select(tables.source_policies).where(tables.source_policies.c.keep_days.is_not(None))
    )
    runs, removed = tables.runs, 0
    for policy in policies:
        expired = sa.select(runs.c.trace_id).where(
            runs.c.team_id == policy.team_id,
            runs.c.source == policy.source,
            sa.type_coerce(runs.c.started_at, sa.BigInteger)
            < now_microseconds() - policy.keep_days * DAY,
        )
        for some in in_parts(store.values(expired)):
            removed += len(some)
            with store.begin() as connection:
                for table in _OF_RUNS:
                    connection.execute(sa.delete(table).where(table.c.trace_id.in_(some)))
                for column in _REFERENCES:
                    connection.execute(sa.delete(column.table).where(column.in_(some)))
                # The index drops the words of a run that is gone.
                to_be_indexed(connection, policy.team_id, some)
    return removed


class Retention(Service):
    """Removal of runs whose time is over, hourly."""

    def __init__(self, store: Store, stopping: asyncio.Event) -> None:
        self._store, self._stopping = store, stopping

    async def work(self) -> None:
        """Remove until the server stops."""
        while not self._stopping.is_set():
            await asyncio.to_thread(remove_expired, self._store)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), HOUR)
