"""Queue of the rollouts that the platform plays itself: a leased queue, shared evenly by teams and their jobs.

A rollout and its run (`tables.runs`) end in one transaction; the result of an attempt that lost its lease is ignored.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.errors import ConflictError
from hud.platform.leases.queue_lease import Lease, LeasedQueue, Which
from hud.platform.store import tables
from hud.platform.store.ingest import ingest_attempt
from hud.platform.store.reporting import job_entered, run_entered
from hud.trace import plain

PAUSE_SECONDS = 1.0
"""Seconds before a rollout that infrastructure broke is played again; doubled with each attempt."""


@dataclass(frozen=True)
class Taken:
    """A rollout that a worker holds."""

    trace_id: str
    attempt: int
    team_id: str
    key_id: str | None
    job_id: str | None
    spec: dict[str, Any]


class Rollouts(LeasedQueue[Taken]):
    """The rollouts of one store."""

    table = tables.rollouts
    waiting, running, cancelling = "queued", "running", "cancelling"
    fair_by = ("team_id", "job_id")
    lease_seconds = 30.0
    most_attempts = 4
    """Leases that may be lost, or infrastructure faults, before a rollout is an error."""

    def submit(
        self, team: str, key_id: str | None, trace_id: str, job_id: str | None, spec: dict[str, Any]
    ) -> str:
        """Queue a rollout; one that is known already stays as it is. Returns its status."""
        rollouts = tables.rollouts
        if job_id is not None and not self._job_known(team, job_id):
            job_entered(self.store, team, job_id, str(spec.get("slug") or "job"), 1, None)
        known = {"job_id": job_id, "group_id": spec.get("group_id"), "slug": spec.get("slug")}
        run_entered(self.store, team, trace_id, {k: v for k, v in known.items() if v is not None})
        mine = sa.and_(rollouts.c.trace_id == trace_id, rollouts.c.team_id == team)
        row = waiting_row(team, key_id, trace_id, job_id, spec)
        # The client may repeat a request whose answer it missed, while the first is still being served.
        with contextlib.suppress(IntegrityError), self.store.begin() as connection:
            if connection.execute(sa.select(rollouts.c.status).where(mine)).first() is None:
                connection.execute(sa.insert(rollouts).values(**row))
        return str(self.store.value(sa.select(rollouts.c.status).where(mine)))

    def cancel(self, team: str, *, trace_id: str | None = None, job_id: str | None = None) -> int:
        """Cancel open rollouts: one, those of a job, or all of the team's; returns how many."""
        rollouts = tables.rollouts
        which = [rollouts.c.team_id == team]
        if trace_id is not None:
            which.append(rollouts.c.trace_id == trace_id)
        if job_id is not None:
            which.append(rollouts.c.job_id == job_id)
        with self.store.begin() as connection:
            waiting = (*which, rollouts.c.status == self.waiting)
            cancelled = _end(connection, waiting, "cancelled", "Cancelled before it was played.")
            running = sa.update(rollouts).where(*which, rollouts.c.status == self.running)
            return cancelled + connection.execute(running.values(status=self.cancelling)).rowcount

    def open_jobs(self, team: str) -> dict[str, int]:
        """Return the team's jobs with open rollouts, and how many each has."""
        rollouts = tables.rollouts
        query = (
            sa.select(rollouts.c.job_id, sa.func.count())
            .where(rollouts.c.team_id == team, rollouts.c.ended_at.is_(None))
            .group_by(rollouts.c.job_id)
        )
        return {job or "": int(count) for job, count in self.store.rows(query)}

    def known(self, team: str, *, job_id: str) -> int:
        """Return how many rollouts of a job there are, open or ended."""
        rollouts = tables.rollouts
        mine = (rollouts.c.team_id == team, rollouts.c.job_id == job_id)
        return int(self.store.value(sa.select(sa.func.count()).where(*mine)))

    def finish(
        self, worker: str, trace_id: str, attempt: int, events: bytes, *, again: bool
    ) -> bool:
        """Store the journal lines of an attempt and end its rollout; False, and nothing changes, without its lease.

        With `again` (infrastructure broke it) the rollout goes back into the queue while attempts are left.
        """
        lease = Lease(trace_id, worker, attempt)
        row = self.held(lease)
        if row is None:
            return False
        cancelled = row.status == self.cancelling
        if again and not cancelled and attempt < self.most_attempts:
            # What broke may need a moment to be there again.
            return self.retry(lease, PAUSE_SECONDS * 2 ** (attempt - 1))
        status = "cancelled" if cancelled else "ended"

        def end(connection: sa.Connection) -> bool:
            return self.end(connection, lease, status=status)

        return ingest_attempt(self.store, row.team_id, trace_id, events, end)

    def item(self, row: sa.Row[Any], lease: Lease) -> Taken:
        return Taken(lease.id, lease.attempt, row.team_id, row.key_id, row.job_id, row.spec)

    def end_lost(self, connection: sa.Connection, which: Which) -> None:
        lost = f"{self.most_attempts} workers were lost while they played it."
        _end(connection, which, "error", lost)

    def end_cancelled(self, connection: sa.Connection, which: Which) -> None:
        _end(connection, which, "cancelled", "Cancelled.")

    def _job_known(self, team: str, job_id: str) -> bool:
        jobs = tables.jobs
        owner = self.store.value(sa.select(jobs.c.team_id).where(jobs.c.id == job_id))
        if owner not in (None, team):
            raise ConflictError(f"Job {job_id!r} is not of this key's team.")
        return owner is not None


def _end(connection: sa.Connection, which: Which, status: str, error: str) -> int:
    """End rollouts that are not played any more, and their runs; returns how many."""
    rollouts, runs = tables.rollouts, tables.runs
    ended = {"status": status, "ended_at": datetime.now(UTC)}
    theirs = runs.c.trace_id.in_(sa.select(rollouts.c.trace_id).where(*which))
    connection.execute(sa.update(runs).where(theirs).values(**ended, error=error))
    return connection.execute(sa.update(rollouts).where(*which).values(**ended)).rowcount


def waiting_row(
    team: str, key_id: str | None, trace_id: str, job_id: str | None, spec: dict[str, Any]
) -> dict[str, Any]:
    """Return the row of a rollout that waits to be played."""
    return {
        "trace_id": trace_id,
        "team_id": team,
        "key_id": key_id,
        "job_id": job_id,
        "spec": spec,
        "status": Rollouts.waiting,
        "created_at": datetime.now(UTC),
    }


def spec_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a submitted rollout, beside its ids."""
    ids = ("trace_id", "job_id", "parent_trace_id")
    spec = {name: value for name, value in body.items() if name not in ids and value is not None}
    if "group_id" in spec:
        spec["group_id"] = plain(str(spec["group_id"]))
    return spec
