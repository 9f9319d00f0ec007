"""Leased queue: rows of a table that workers take, hold for a time, and finish once.

A row waits, is held by one worker, and ends. Taking it counts an attempt; worker and attempt together are the lease, and
a result that comes under another lease changes nothing. A lease that is not renewed expires after `lease_seconds`, or at
`recover` where its worker ran on this machine and is dead. The row then waits again, or ends once it is `used_up`. The
table is all the state: every server of one database may serve the same queue.
Queues of this kind: `hud_platform.rollouts.rollout_queue` and `hud_platform.environments.build_queue`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import sqlalchemy as sa

from hud.processes.presence import is_gone
from hud_platform.leases import lease_statements as statements
from hud_platform.leases.lease_statements import Lease, Only, QueueTable
from hud_platform.store import Store
from hud_platform.store.queries import Row

__all__ = ["Lease", "LeasedQueue", "Only", "Which"]

Item = TypeVar("Item")
Which = Sequence[sa.ColumnElement[bool]]
NOTHING: Only = MappingProxyType({})


class LeasedQueue(ABC, Generic[Item]):
    """A table as a queue. Besides a primary key it has the columns `status`, `worker`, `attempt`, `lease_expires_at`,
    `created_at`, `started_at` and `ended_at`."""

    table: ClassVar[sa.Table]
    waiting: ClassVar[str]
    """Status of rows that may be taken, from `lease_expires_at` on where they have one."""
    running: ClassVar[str]
    cancelling: ClassVar[str | None] = None
    """Status of held rows that end, and do not wait again, when their lease does."""
    fair_by: ClassVar[tuple[str, ...]] = ()
    """Columns whose values share the workers evenly: the first among all rows, each further one within the former."""
    most_attempts: ClassVar[int]
    """Attempts that may fail before a row ends."""
    lease_seconds: float

    def __init__(self, store: Store) -> None:
        self.store = store
        names = (self.waiting, self.running, self.cancelling)
        self.queue = QueueTable(self.table, *names, self.fair_by)
        self._id, self._held = self.queue.id, self.queue.held
        self._status, self._expires = self.table.c.status, self.table.c.lease_expires_at
        self.changes = 0
        """Changes whenever rows come to wait by way of this object, for those who look for them."""
        self._wait = {"status": self.waiting, "worker": None, "lease_expires_at": None}

    @abstractmethod
    def item(self, row: sa.Row[Any], lease: Lease) -> Item:
        """Return a row that was taken, as workers get it."""

    @abstractmethod
    def end_lost(self, connection: sa.Connection, which: Which) -> None:
        """End rows whose last attempt lost its lease."""

    def end_cancelled(self, connection: sa.Connection, which: Which) -> None:
        """End rows in the status `cancelling` that no worker holds any more."""
        raise NotImplementedError

    def used_up(self) -> sa.ColumnElement[bool]:
        """Return the condition under which a row whose lease is lost ends."""
        return self.table.c.attempt >= self.most_attempts

    def when_lost(self) -> dict[str, Any]:
        """Return the columns that change, besides those of the lease, when a lease is lost."""
        return {}

    def when_broken(self) -> dict[str, Any]:
        """Return the columns that change when an attempt is to be repeated."""
        return {}

    def when_released(self) -> dict[str, Any]:
        """Return the columns that change when a worker hands a row back: it costs no attempt."""
        return {"attempt": self.table.c.attempt - 1}

    def when_requeued(self) -> dict[str, Any]:
        """Return the columns that change when a row that was over waits again."""
        return {"attempt": 0}

    def count_returned(self, connection: sa.Connection, worker: str, count: int) -> None:
        """Count rows that a worker hands back without having begun them."""

    def note(self, connection: sa.Connection, which: Which, outcome: str) -> None:
        """Record that the current attempts of these rows end without a result, before the rows change."""

    def end_released(self, connection: sa.Connection, which: Which) -> None:
        """End those of the rows that a worker hands back which were handed back too often."""

    def take(self, worker: str, most: int = 1, only: Only = NOTHING) -> list[Item]:
        """Lease up to `most` rows to a worker: of each value of `fair_by` the fewest are held; then the older first.

        Safe on SQLite (one writer at a time) and on PostgreSQL (rows that another transaction looks at are skipped).
        """
        now = self.store.clock.now()
        # Idle workers ask all the time; only a queue with something to do is written to.
        query = statements.looking(self.queue, statements.shape_of(only))
        some_due, some_expired = self.store.rows(query, now=now, **statements.values_of(only))[0]
        if not some_due and not some_expired:
            return []
        return self.lease(worker, most, now, only, expired=some_expired)

    def lease(
        self, worker: str, most: int, now: datetime, only: Only, *, expired: bool
    ) -> list[Item]:
        """Lease rows as `take` does, without a look before; `expired`: some leases are over."""
        with self.store.begin() as connection:
            if expired:
                self._expire(connection, now)
            rows = self._next(connection, now, only, most)
            taken = [row._mapping[self._id] for row in rows]
            if taken:
                values = {"ids": taken, "lease_worker": worker, "now": now}
                leasing = statements.leasing(self.queue)
                connection.execute(leasing, {**values, "until": self._until(now)})
        leases = [
            Lease(item_id, worker, row.attempt + 1)
            for item_id, row in zip(taken, rows, strict=True)
        ]
        return [self.item(row, lease) for row, lease in zip(rows, leases, strict=True)]

    def renew(self, worker: str, held: Sequence[str]) -> tuple[list[str], list[str]]:
        """Extend a worker's leases; returns the ids to be cancelled, and those that the worker holds no more."""
        until = self._until(self.store.clock.now())
        values = {"ids": held, "lease_worker": worker, "until": until}
        with self.store.begin() as connection:
            rows = connection.execute(statements.renewing(self.queue), values).all()
        states: dict[str, str] = {row[0]: row[1] for row in rows}
        cancelled = [item_id for item_id, status in states.items() if status == self.cancelling]
        return cancelled, [item_id for item_id in held if item_id not in states]

    def release(self, worker: str, held: Sequence[str], *, begun: bool = True) -> None:
        """Put rows that a worker holds back into the queue; where it had not `begun`, no attempt is counted as lost."""
        # Outside of the transaction: many ids that it does not hold would hold up the writes of others.
        leased = sa.select(self._id).where(self.table.c.worker == worker, self._held)
        held = sorted(set(held) & set(self.store.values(leased)))
        if not held:
            return
        own_leases = (self.table.c.worker == worker, self._id.in_(held))
        with self.store.begin() as connection:
            running = (*own_leases, self._status == self.running)
            if begun:
                self.note(connection, running, "handed back")
                self.end_released(connection, running)
            change = self.when_released() if begun else {}
            count = self._update(connection, running, **self._wait, **change)
            if not begun:
                self.count_returned(connection, worker, count)
            if self.cancelling is not None:
                self.end_cancelled(connection, (*own_leases, self._status == self.cancelling))
        self.changes += 1

    def release_all(self, worker: str) -> None:
        """Put every row that a worker holds back into the queue."""
        held = sa.select(self._id).where(self.table.c.worker == worker, self._held)
        if rows := self.store.values(held):
            self.release(worker, rows)

    def begin_again(self) -> None:
        """At a server's start, let the leases of living workers begin now, and every pause end.

        None could be renewed while no server ran, and the date may be another one than it was.
        """
        until = self._until(self.store.clock.now())
        with self.store.begin() as connection:
            self._update(connection, (self._held,), lease_expires_at=until)
            paused = (self._status == self.waiting, self._expires.is_not(None))
            self._update(connection, paused, lease_expires_at=None)
        self.recover()

    def recover(self) -> None:
        """Let the leases of dead workers of this machine expire now."""
        with self.store.begin() as connection:
            query = sa.select(self.table.c.worker).where(self._held).distinct()
            workers = connection.execute(query).scalars()
            gone = [worker for worker in workers if worker and is_gone(worker)]
            past = datetime.fromtimestamp(0, UTC)
            dead = (self.table.c.worker.in_(gone), self._held)
            self._update(connection, dead, lease_expires_at=past)

    def held(self, connection: sa.Connection, leases: Sequence[Lease]) -> dict[Lease, sa.Row[Any]]:
        """Return the rows of those leases that are not lost, and whose row is not over."""
        rows = self.of_leases(connection, statements.holding(self.queue), leases)
        rows_by_lease = {
            Lease(row._mapping[self._id], row.worker, row.attempt): row for row in rows
        }
        return {lease: rows_by_lease[lease] for lease in leases if lease in rows_by_lease}

    def lock(self, connection: sa.Connection, leases: Sequence[Lease]) -> set[Lease]:
        """Return those of the leases that are held, and keep their rows as they are until the transaction ends."""
        rows = self.of_leases(connection, statements.locking(self.queue), leases)
        return self.leases(rows)

    def of_leases(
        self,
        connection: sa.Connection,
        statement: sa.Executable,
        leases: Sequence[Lease],
        **values: Any,
    ) -> list[sa.Row[Any]]:
        """Execute a statement over `QueueTable.under` for these leases; returns its rows. `values`: further parameters."""
        return [
            row
            for group in statements.groups(leases)
            for row in connection.execute(statement, {**values, **group})
        ]

    def leases(self, rows: Iterable[Row]) -> set[Lease]:
        """Return the leases whose columns these rows are, see `QueueTable.lease`."""
        return {Lease(row[0], row[1], row[2]) for row in rows}

    def retry(self, lease: Lease, pause_seconds: float) -> bool:
        """Put a row back into the queue for another attempt after a pause; False where the lease is lost or cancelled."""
        later = self.store.clock.now() + timedelta(seconds=pause_seconds)
        running = (*self._under(lease), self._status == self.running)
        with self.store.begin() as connection:
            self.note(connection, running, "broken")
            values = {**self._wait, **self.when_broken(), "lease_expires_at": later}
            return self._update(connection, running, **values) == 1

    def end(self, connection: sa.Connection, lease: Lease, **values: Any) -> bool:
        """Set the last status, and more, of a leased row; False, and nothing is set, where the lease is lost."""
        now = datetime.now(UTC)
        return self._update(connection, self._under(lease), **values, ended_at=now) == 1

    def requeue(self, connection: sa.Connection, ids: Sequence[str]) -> None:
        """Let rows that are over wait again, with all their attempts."""
        fresh = {**self._wait, **self.when_requeued(), "started_at": None, "ended_at": None}
        self._update(connection, (self._id.in_(ids),), **fresh)

    def _expire(self, connection: sa.Connection, now: datetime) -> None:
        """Put rows whose lease is over back into the queue; end the cancelled ones and those without attempts left."""
        # Locked first: what a late worker finishes meanwhile is not ended a second time.
        query = sa.select(self._id).where(self.queue.expired).with_for_update(skip_locked=True)
        lost = self._id.in_(connection.execute(query, {"now": now}).scalars().all())
        if self.cancelling is not None:
            self.end_cancelled(connection, (lost, self._status == self.cancelling))
        self.note(connection, (lost, self._held), "lost")
        self.end_lost(connection, (lost, self._held, self.used_up()))
        self._update(connection, (lost, self._held), **self._wait, **self.when_lost())

    def _next(
        self, connection: sa.Connection, now: datetime, only: Only, most: int
    ) -> list[sa.Row[Any]]:
        """Lock the rows to be taken."""
        values = {"now": now, **statements.values_of(only)}
        query = statements.oldest(self.queue, statements.shape_of(only))
        rows: list[sa.Row[Any]] = []
        for share, count in self._shares(connection, now, only, most).items():
            same = {f"share_{name}": part for name, part in zip(self.fair_by, share, strict=True)}
            rows += connection.execute(query, {**values, **same, "most": count}).all()
        return rows

    def _shares(
        self, connection: sa.Connection, now: datetime, only: Only, most: int
    ) -> Counter[tuple[Any, ...]]:
        """Return how many rows to take of each combination of `fair_by`, `most` in all."""
        values = {"now": now, **statements.values_of(only)}
        query = statements.shares(self.queue, statements.shape_of(only))
        by = self.fair_by
        rows_by_share = {tuple(row[: len(by)]): row for row in connection.execute(query, values)}
        load: Counter[tuple[Any, ...]] = Counter()
        for share, row in rows_by_share.items():
            for prefix in _prefixes(share):
                load[prefix] += row.held
        taken: Counter[tuple[Any, ...]] = Counter()
        for _ in range(most):
            left = [share for share, row in rows_by_share.items() if row.due > taken[share]]
            if not left:
                break
            share = min(
                left,
                key=lambda share: (
                    *(load[p] for p in _prefixes(share)),
                    rows_by_share[share].oldest,
                ),
            )
            taken[share] += 1
            for prefix in _prefixes(share):
                load[prefix] += 1
        return taken

    def _under(self, lease: Lease) -> Which:
        return (
            self._id == lease.id,
            self.table.c.worker == lease.worker,
            self.table.c.attempt == lease.attempt,
            self._held,
        )

    def _until(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self.lease_seconds)

    def _update(self, connection: sa.Connection, which: Which, **values: Any) -> int:
        return connection.execute(sa.update(self.table).where(*which).values(**values)).rowcount


def _prefixes(share: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [share[: length + 1] for length in range(len(share))]
