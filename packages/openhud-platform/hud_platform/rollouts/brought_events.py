"""Events of attempts, as the worker that holds them brings them: stored, and those that are over ended, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.errors import HudError, PlatformError, StoreError, UsageError
from hud_platform.leases.leased_queue import Lease
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import tables
from hud_platform.store.attempts import Attempt, AttemptRows, read_attempt, write_attempts

_log = logging.getLogger("hud.platform")
_REFUSED = (UsageError, IntegrityError, UnicodeError)


@dataclass(frozen=True)
class Brought:
    """Lines that an attempt recorded since its worker brought some last."""

    lease: Lease
    events: bytes
    """Journal lines."""
    over: bool = True
    """The attempt ended, and these are its last lines."""
    again: bool = False
    """Infrastructure broke the attempt: its rollout is to be played again."""
    first: bool = True
    """Nothing of this attempt was brought before."""


@dataclass(frozen=True)
class _Held:
    """Rows of an attempt whose lease is held."""

    brought: Brought
    rows: AttemptRows


Answer = bool | HudError
"""True: stored. False: its lease is lost, and nothing changed. An error: refused, and nothing changed."""


def store_events(rollouts: Rollouts, brought: Sequence[Brought]) -> list[Answer]:
    """Store what several attempts recorded, and end the rollouts of those that are over; returns an answer for each.

    An attempt that infrastructure broke goes back into the queue while attempts are left. Errors: `PlatformError` 403 for a
    lease that never was, `UsageError` for events that are damaged or none of the attempt's. Raises `StoreError`.
    """
    answers: dict[int, Answer] = {}
    held: dict[int, _Held] = {}
    with rollouts.store.read() as connection:
        rows = rollouts.held(connection, [events_of_lease.lease for events_of_lease in brought])
    for number, events_of_lease in enumerate(brought):
        try:
            row = rows.get(events_of_lease.lease)
            if row is None:
                answers[number] = _refuse_unknown(rollouts, events_of_lease.lease)
            elif events_of_lease.over and events_of_lease.again and rollouts.may_retry(row):
                answers[number] = rollouts.play_again(events_of_lease.lease, row)
            else:
                again = events_of_lease.first and events_of_lease.lease.attempt > 1
                read = read_attempt(
                    rollouts.store, _attempt(row), events_of_lease.events, again=again
                )
                held[number] = _Held(events_of_lease, read)
        except StoreError:
            raise
        except HudError as error:
            answers[number] = error
    if held:
        answers |= dict(zip(held, _write(rollouts, list(held.values())), strict=True))
    return [answers[number] for number in range(len(brought))]


def _write(rollouts: Rollouts, held: list[_Held]) -> list[Answer]:
    """Write in one transaction; where that fails, each by itself: one that is refused costs no other its result."""
    leases = [attempt.brought.lease for attempt in held]
    if len({lease.id for lease in leases}) == len(leases):
        try:
            with rollouts.store.begin() as connection:
                over = [attempt.brought.lease for attempt in held if attempt.brought.over]
                going_on = [attempt.brought.lease for attempt in held if not attempt.brought.over]
                locked = rollouts.end_played(connection, over) | rollouts.lock(connection, going_on)
                write_attempts(
                    connection,
                    [attempt.rows for attempt in held if attempt.brought.lease in locked],
                )
            return [lease in locked for lease in leases]
        except _REFUSED as error:
            if len(held) == 1:
                sentence = "The events of this attempt cannot be stored."
                return [error if isinstance(error, UsageError) else UsageError(sentence)]
    return [answer for attempt in held for answer in _write(rollouts, [attempt])]


def _refuse_unknown(rollouts: Rollouts, lease: Lease) -> bool:
    """Return False for a lease that was lost, or whose rollout is over. Raises `PlatformError` for one that never was."""
    for table in (rollouts.table, tables.lost_attempts):
        same = (table.c.trace_id == lease.id, table.c.attempt == lease.attempt)
        had = sa.select(table.c.trace_id).where(*same, table.c.worker == lease.worker)
        if rollouts.store.row(had) is not None:
            return False
    _log.warning(
        "Refused: %s brought events of rollout %s, attempt %d, which it never held.",
        lease.worker,
        lease.id,
        lease.attempt,
    )
    raise PlatformError("This worker never held that attempt at that rollout.", 403)


def _attempt(row: sa.Row[Any]) -> Attempt:
    spec = row.spec
    group, number = spec.get("group_id"), int(spec.get("attempt") or 0)
    return Attempt(row.team_id, row.trace_id, row.job_id, group, number)
