"""Statements of the queue of rollouts, each built once; see `leases.lease_statements`."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from hud_platform.leases.lease_statements import QueueTable, Shape


class Seen(NamedTuple):
    """State of the queue at a look."""

    at: datetime
    some_need: bool
    """Some that wait require something of a node."""
    due: bool
    """Some that require nothing may be taken."""
    expired: bool
    """Some leases are over."""
    many: bool
    """So many wait that a node may take some ahead."""
    held: int
    """Rollouts that the node holds."""


@cache
def looking(queue: QueueTable, whatever: Shape) -> sa.Select[Any]:
    """Return the query for a `Seen`; `whatever`: see `Rollouts._look`; `before`: one less than are many,
    `holder`: the node's name in leases."""
    waiting = queue.table.c.status == queue.waiting
    wait = sa.select(queue.id).where(waiting, *queue.meeting(whatever))
    columns: tuple[Any, ...] = (
        queue.some(sa.and_(waiting, queue.table.c.needs.is_not(None))),
        queue.some(queue.due(whatever)),
        queue.some(queue.expired),
        sa.exists(wait.limit(1).offset(sa.bindparam("before"))),
        sa.select(sa.func.count())
        .where(queue.table.c.worker == sa.bindparam("holder"), queue.held)
        .scalar_subquery(),
    )
    return sa.select(*columns)


@cache
def ending(queue: QueueTable) -> sa.Update:
    """Return the statement that ends the rollouts of held leases, and returns these leases."""
    status = queue.table.c.status
    ended = sa.case((status == queue.cancelling, "cancelled"), else_="ended")
    change = sa.update(queue.table).where(queue.under)
    return change.values(status=ended, ended_at=sa.bindparam("now")).returning(*queue.lease)
