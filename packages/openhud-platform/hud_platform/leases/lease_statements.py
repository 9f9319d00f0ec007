"""Statements of a leased queue, each built once: with SQLAlchemy, building one takes several times as long as executing it.

Parameters: `now`; `only_NAME` and `share_NAME`, the value of a column; `ids`, `worker` and `attempt`, see `under`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

Only = Mapping[str, str | None]
"""Values that columns of a row must have."""
Shape = tuple[tuple[str, bool], ...]
"""Columns of an `Only`, each with whether it must be NULL."""
Condition = sa.ColumnElement[bool]


@dataclass(frozen=True)
class Lease:
    """The right to finish one row: its id, the worker that took it, and the number of the attempt, from 1."""

    id: str
    worker: str
    attempt: int


@dataclass(frozen=True)
class QueueTable:
    """The table of a queue, and what its statuses are called; see `LeasedQueue`."""

    table: sa.Table
    waiting: str
    running: str
    cancelling: str | None
    fair_by: tuple[str, ...]

    @property
    def id(self) -> sa.Column[Any]:
        """The primary key."""
        (key,) = self.table.primary_key.columns
        return key

    @property
    def lease(self) -> tuple[sa.Column[Any], ...]:
        """Columns of a `Lease`."""
        return self.id, self.table.c.worker, self.table.c.attempt

    @property
    def held(self) -> Condition:
        """Condition of rows that a worker holds."""
        statuses = [status for status in (self.running, self.cancelling) if status]
        return self.table.c.status.in_(statuses)

    @property
    def expired(self) -> Condition:
        """Condition of rows whose lease is over."""
        return sa.and_(self.held, self.table.c.lease_expires_at < sa.bindparam("now"))

    def due(self, only: Shape) -> Condition:
        """Return the condition of rows that may be taken."""
        expires = self.table.c.lease_expires_at
        ready = sa.or_(expires.is_(None), expires <= sa.bindparam("now"))
        return sa.and_(self.table.c.status == self.waiting, ready, *self.meeting(only))

    def meeting(self, only: Shape) -> Iterator[Condition]:
        """Yield the conditions of an `Only`."""
        for name, null in only:
            column = self.table.c[name]
            yield column.is_(None) if null else column == sa.bindparam(f"only_{name}")

    @property
    def under(self) -> Condition:
        """Condition of rows that a worker holds at these attempts; parameters: see `groups`."""
        return sa.and_(
            self.id.in_(sa.bindparam("ids", expanding=True)),
            self.table.c.worker == sa.bindparam("lease_worker"),
            self.table.c.attempt == sa.bindparam("lease_attempt"),
            self.held,
        )

    def some(self, which: Condition) -> Condition:
        """Return the condition that there are such rows."""
        return sa.exists(sa.select(self.id).where(which))


def shape_of(only: Only) -> Shape:
    """Return the columns of an `Only`."""
    return tuple((name, value is None) for name, value in only.items())


def values_of(only: Only) -> dict[str, str | None]:
    """Return the parameters of an `Only`."""
    return {f"only_{name}": value for name, value in only.items() if value is not None}


def groups(leases: Sequence[Lease]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of `QueueTable.under` that together match these leases: most often one group."""
    alike: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for lease in leases:
        alike[lease.worker, lease.attempt].append(lease.id)
    for (worker, attempt), ids in alike.items():
        yield {"ids": ids, "lease_worker": worker, "lease_attempt": attempt}


@cache
def looking(queue: QueueTable, only: Shape) -> sa.Select[Any]:
    """Return the query for whether some rows may be taken, and whether some leases are over."""
    there: tuple[Any, ...] = (queue.some(queue.due(only)), queue.some(queue.expired))
    return sa.select(*there)


@cache
def shares(queue: QueueTable, only: Shape) -> sa.Select[Any]:
    """Return the query for how many rows may be taken, and how many are held, of each combination of `fair_by`."""
    table, due = queue.table, queue.due(only)
    by = [table.c[name] for name in queue.fair_by]
    return (
        sa.select(
            *by,
            sa.func.count(sa.case((due, 1))).label("due"),
            sa.func.count(sa.case((queue.held, 1))).label("held"),
            sa.func.min(table.c.created_at).label("oldest"),
        )
        .where(sa.or_(table.c.status == queue.waiting, queue.held))
        .group_by(*by)
    )


@cache
def oldest(queue: QueueTable, only: Shape) -> sa.Select[Any]:
    """Return the query that locks the `most` oldest rows that may be taken, of one combination of `fair_by`."""
    table = queue.table
    same = [
        table.c[name].is_not_distinct_from(sa.bindparam(f"share_{name}")) for name in queue.fair_by
    ]
    return (
        sa.select(table)
        .where(queue.due(only), *same)
        .order_by(table.c.created_at, queue.id)
        .limit(sa.bindparam("most"))
        .with_for_update(skip_locked=True)
    )


@cache
def leasing(queue: QueueTable) -> sa.Update:
    """Return the statement that leases the rows `ids` to `lease_worker`, from `now` to `until`."""
    table, began = queue.table, queue.table.c.started_at
    return (
        sa.update(table)
        .where(queue.id.in_(sa.bindparam("ids", expanding=True)))
        .values(
            status=queue.running,
            worker=sa.bindparam("lease_worker"),
            attempt=table.c.attempt + 1,
            started_at=sa.func.coalesce(began, sa.bindparam("now", type_=began.type)),
            lease_expires_at=sa.bindparam("until"),
        )
    )


@cache
def renewing(queue: QueueTable) -> sa.Update:
    """Return the statement that extends leases of `lease_worker` to `until`, and returns each row's id and status."""
    table = queue.table
    own_lease = (
        queue.id.in_(sa.bindparam("ids", expanding=True)),
        table.c.worker == sa.bindparam("lease_worker"),
        queue.held,
    )
    extended = sa.update(table).where(*own_lease).values(lease_expires_at=sa.bindparam("until"))
    return extended.returning(queue.id, table.c.status)


@cache
def holding(queue: QueueTable) -> sa.Select[Any]:
    """Return the query for the rows of held leases."""
    return sa.select(queue.table).where(queue.under)


@cache
def locking(queue: QueueTable) -> sa.Select[Any]:
    """Return the query that locks the rows of held leases."""
    return sa.select(*queue.lease).where(queue.under).with_for_update()
