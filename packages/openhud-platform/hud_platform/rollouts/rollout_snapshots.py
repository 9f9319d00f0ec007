"""Snapshots of rollouts that are being played: the last one of each, as a content-addressed blob, for the next attempt.

A snapshot holds what an agent did and what its files are, and is deleted soon after its rollout ends.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from hud.errors import PlatformError, UsageError
from hud.trace.recorded_time import now_microseconds
from hud_platform.leases.leased_queue import Lease
from hud_platform.process.background import Service
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import tables
from hud_platform.store.ingest import upsert
from hud_platform.store.queries import in_parts

MOST_BYTES = 60 << 20
"""Largest snapshot of a rollout: a request has at most 64 MiB."""
SWEEP_SECONDS = 10.0
"""Between two deletions of the snapshots of ended rollouts."""
KEPT_DAYS = 7
"""Time after which a snapshot is deleted, whatever its rollout does."""


class RolloutSnapshots(Service):
    """The snapshots of one store's rollouts."""

    def __init__(self, rollouts: Rollouts, stopping: asyncio.Event) -> None:
        self.rollouts, self.store = rollouts, rollouts.store
        self._stopping = stopping

    async def work(self) -> None:
        """Delete the snapshots of ended rollouts until the server stops."""
        while not self._stopping.is_set():
            await asyncio.to_thread(self.sweep)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), SWEEP_SECONDS)

    def keep(self, lease: Lease, data: bytes) -> None:
        """Store a snapshot in place of the one before; the rollout may be preempted as often as before its first attempt.

        Raises `PlatformError` 409 where the lease is lost, `UsageError` for too large a snapshot.
        """
        if len(data) > MOST_BYTES:
            raise UsageError(f"A snapshot has at most {MOST_BYTES >> 20} MiB.")
        team = self._held(lease).team_id
        key = f"{team}/snapshots/{lease.id}/{hashlib.sha256(data).hexdigest()}"
        self.store.blobs.put(key, data)
        before = self._row(lease.id)
        with self.store.begin() as connection:
            held = lease in self.rollouts.lock(connection, [lease])
            if held:
                row = {
                    "trace_id": lease.id,
                    "attempt": lease.attempt,
                    "blob": key,
                    "bytes": len(data),
                    "taken": 1 + (0 if before is None else before.taken),
                    "taken_at": now_microseconds(),
                }
                names = [name for name in row if name != "trace_id"]
                upsert(connection, tables.rollout_snapshots, [row], update=names)
                # Progress: what is preempted for hours must not end by the number of its attempts.
                of_rollout = self.rollouts.table.c.trace_id == lease.id
                connection.execute(
                    sa.update(self.rollouts.table).where(of_rollout).values(preemptions=0)
                )
        replaced = before is not None and before.blob != key
        if not held:
            if before is None or replaced:
                self.store.blobs.delete(key)
            raise _lost()
        if replaced:
            self.store.blobs.delete(before.blob)

    def last(self, lease: Lease) -> bytes | None:
        """Return the last snapshot of a rollout that a worker holds. Raises `PlatformError` 409 where its lease is lost."""
        self._held(lease)
        row = self._row(lease.id)
        return None if row is None else self.store.blobs.get(row.blob)

    def drop(self, lease: Lease) -> None:
        """Delete the snapshot of a rollout that a worker holds."""
        self._held(lease)
        self._delete([lease.id])

    def those_with_one(self, traces: Sequence[str]) -> set[str]:
        """Return which of these rollouts have a snapshot."""
        snapshots = tables.rollout_snapshots
        query = sa.select(snapshots.c.trace_id)
        return {
            trace
            for some in in_parts(traces)
            for trace in self.store.values(query.where(snapshots.c.trace_id.in_(some)))
        }

    def sweep(self) -> None:
        """Delete the snapshots of rollouts that are over, and those that are too old."""
        snapshots, rollouts = tables.rollout_snapshots, tables.rollouts
        going_on = sa.select(rollouts.c.trace_id).where(rollouts.c.ended_at.is_(None))
        old = datetime.now(UTC) - timedelta(days=KEPT_DAYS)
        over = sa.or_(snapshots.c.trace_id.not_in(going_on), snapshots.c.taken_at < old)
        self._delete(self.store.values(sa.select(snapshots.c.trace_id).where(over)))

    def _delete(self, traces: Sequence[str]) -> None:
        snapshots = tables.rollout_snapshots
        for some in in_parts(traces):
            of_traces = snapshots.c.trace_id.in_(some)
            blobs = self.store.values(sa.select(snapshots.c.blob).where(of_traces))
            # First the blobs: without its row one would stay for ever.
            for blob in blobs:
                self.store.blobs.delete(blob)
            with self.store.begin() as connection:
                connection.execute(sa.delete(snapshots).where(snapshots.c.blob.in_(blobs)))

    def _row(self, trace_id: str) -> Any:
        snapshots = tables.rollout_snapshots
        return self.store.row(sa.select(snapshots).where(snapshots.c.trace_id == trace_id))

    def _held(self, lease: Lease) -> Any:
        with self.store.read() as connection:
            row = self.rollouts.held(connection, [lease]).get(lease)
        if row is None:
            raise _lost()
        return row


def _lost() -> PlatformError:
    return PlatformError("The lease of this attempt is lost.", 409)
