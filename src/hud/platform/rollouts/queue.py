"""Rollouts that the platform plays itself: a queue in the store, held by leases, counted once.

A worker that takes a rollout gets its attempt's number with it. Whatever it brings later is taken only while that
attempt holds the lease: a worker that was given up comes too late, and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.client.presence import is_gone
from hud.errors import ConflictError
from hud.platform.store import tables
from hud.platform.store.ingest import Attempt, ingest_attempt
from hud.platform.store.reporting import job_entered, run_entered
from hud.trace import plain

if TYPE_CHECKING:
    from hud.platform.store import Store

LEASE_SECONDS = 30.0
MOST_ATTEMPTS = 4
"""Workers that a rollout may cost, or infrastructure faults, before it is an error."""
PAUSE_SECONDS = 1.0
"""Before a rollout that infrastructure broke is played again; doubled each time."""
HELD = ("running", "cancelling")
OPEN = ("queued", *HELD)
_WAITING: dict[str, Any] = {"status": "queued", "worker": None, "lease_expires_at": None}


@dataclass(frozen=True)
class Taken:
    """A rollout that a worker holds."""

    trace_id: str
    attempt: int
    team_id: str
    key_id: str | None
    job_id: str | None
    spec: dict[str, Any]


class Rollouts:
    """The rollouts of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # -- asked by clients ---------------------------------------------------------------------------

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
        row = {
            "trace_id": trace_id,
            "team_id": team,
            "key_id": key_id,
            "job_id": job_id,
            "spec": spec,
            "status": "queued",
            "attempt": 0,
            "created_at": datetime.now(UTC),
        }
        # The client may repeat a request whose answer it missed, while the first is still being served.
        with contextlib.suppress(IntegrityError), self.store.begin() as connection:
            if connection.execute(sa.select(rollouts.c.status).where(mine)).first() is None:
                connection.execute(sa.insert(rollouts).values(**row))
        with self.store.read() as connection:
            return str(connection.execute(sa.select(rollouts.c.status).where(mine)).scalar_one())

    def cancel(self, team: str, *, trace_id: str | None = None, job_id: str | None = None) -> int:
        """Cancel open rollouts: one, those of a job, or all of the team's; returns how many."""
        rollouts = tables.rollouts
        which = [rollouts.c.team_id == team]
        if trace_id is not None:
            which.append(rollouts.c.trace_id == trace_id)
        if job_id is not None:
            which.append(rollouts.c.job_id == job_id)
        with self.store.begin() as connection:
            waiting = (*which, rollouts.c.status == "queued")
            cancelled = _end(connection, waiting, "cancelled", "Cancelled before it was played.")
            running = sa.update(rollouts).where(*which, rollouts.c.status == "running")
            return cancelled + connection.execute(running.values(status="cancelling")).rowcount

    def open_jobs(self, team: str) -> dict[str, int]:
        """Return the team's jobs with open rollouts, and how many each has."""
        rollouts = tables.rollouts
        query = (
            sa.select(rollouts.c.job_id, sa.func.count())
            .where(rollouts.c.team_id == team, rollouts.c.status.in_(OPEN))
            .group_by(rollouts.c.job_id)
        )
        with self.store.read() as connection:
            return {job or "": int(count) for job, count in connection.execute(query)}

    def known(self, team: str, *, job_id: str) -> int:
        """Return how many rollouts of a job there are, open or ended."""
        rollouts = tables.rollouts
        query = sa.select(sa.func.count()).where(
            rollouts.c.team_id == team, rollouts.c.job_id == job_id
        )
        with self.store.read() as connection:
            return int(connection.execute(query).scalar_one())

    # -- asked by workers ---------------------------------------------------------------------------

    def take(self, worker: str, most: int) -> list[Taken]:
        """Take up to `most` rollouts that nobody holds: of each team and each of its jobs, the fewest are running."""
        rollouts = tables.rollouts
        now = datetime.now(UTC)
        self._give_up(now)
        due = _due(now)
        with self.store.read() as connection:
            # Idle workers ask all the time; only one with something to take writes.
            if (
                connection.execute(sa.select(rollouts.c.trace_id).where(due).limit(1)).first()
                is None
            ):
                return []
        rows: list[sa.Row[Any]] = []
        with self.store.begin() as connection:
            for (team, job), count in _shares(connection, due, most).items():
                query = (
                    sa.select(rollouts)
                    .where(
                        due, rollouts.c.team_id == team, rollouts.c.job_id.is_not_distinct_from(job)
                    )
                    .order_by(rollouts.c.created_at, rollouts.c.trace_id)
                    .limit(count)
                    .with_for_update(skip_locked=True)
                )
                rows += connection.execute(query).all()
            if rows:
                connection.execute(
                    sa.update(rollouts)
                    .where(rollouts.c.trace_id.in_([row.trace_id for row in rows]))
                    .values(
                        status="running",
                        worker=worker,
                        attempt=rollouts.c.attempt + 1,
                        started_at=now,
                        lease_expires_at=now + timedelta(seconds=LEASE_SECONDS),
                    )
                )
        return [
            Taken(row.trace_id, row.attempt + 1, row.team_id, row.key_id, row.job_id, row.spec)
            for row in rows
        ]

    def recover(self) -> None:
        """End the leases of workers that died on this machine: they need not be waited for."""
        rollouts = tables.rollouts
        with self.store.begin() as connection:
            held = connection.execute(
                sa.select(rollouts.c.worker).where(rollouts.c.status.in_(HELD)).distinct()
            ).scalars()
            gone = [worker for worker in held if worker and is_gone(worker)]
            connection.execute(
                sa.update(rollouts)
                .where(rollouts.c.worker.in_(gone), rollouts.c.status.in_(HELD))
                .values(lease_expires_at=datetime.fromtimestamp(0, UTC))
            )

    def renew(self, worker: str, held: Sequence[str]) -> tuple[list[str], list[str]]:
        """Hold rollouts longer; returns those to be cancelled, and those that are this worker's no more."""
        rollouts = tables.rollouts
        until = datetime.now(UTC) + timedelta(seconds=LEASE_SECONDS)
        mine = (
            rollouts.c.worker == worker,
            rollouts.c.trace_id.in_(held),
            rollouts.c.status.in_(HELD),
        )
        with self.store.begin() as connection:
            connection.execute(sa.update(rollouts).where(*mine).values(lease_expires_at=until))
            query = sa.select(rollouts.c.trace_id, rollouts.c.status).where(*mine)
            rows = connection.execute(query).all()
        states = {row.trace_id: row.status for row in rows}
        cancelled = [trace for trace, status in states.items() if status == "cancelling"]
        return cancelled, [trace for trace in held if trace not in states]

    def release(self, worker: str, held: Sequence[str]) -> None:
        """Put rollouts back into the queue, as if they had not been taken."""
        rollouts = tables.rollouts
        mine = (rollouts.c.worker == worker, rollouts.c.trace_id.in_(held))
        with self.store.begin() as connection:
            connection.execute(
                sa.update(rollouts)
                .where(*mine, rollouts.c.status == "running")
                .values(**_WAITING, attempt=rollouts.c.attempt - 1)
            )
            _end(connection, (*mine, rollouts.c.status == "cancelling"), "cancelled", "Cancelled.")

    def finish(
        self, worker: str, trace_id: str, attempt: int, events: bytes, *, again: bool
    ) -> bool:
        """Take over what an attempt recorded; False, and nothing changes, where it does not hold the rollout.

        With `again` (infrastructure broke it) it goes back into the queue while attempts are left.
        """
        rollouts = tables.rollouts
        mine = (
            rollouts.c.trace_id == trace_id,
            rollouts.c.worker == worker,
            rollouts.c.attempt == attempt,
            rollouts.c.status.in_(HELD),
        )
        with self.store.read() as connection:
            row = connection.execute(sa.select(rollouts).where(*mine)).first()
        if row is None:
            return False
        if again and row.status == "running" and attempt < MOST_ATTEMPTS:
            # What broke may need a moment to be there again.
            pause = timedelta(seconds=PAUSE_SECONDS * 2 ** (attempt - 1))
            waiting = {**_WAITING, "lease_expires_at": datetime.now(UTC) + pause}
            with self.store.begin() as connection:
                back = sa.update(rollouts).where(*mine, rollouts.c.status == "running")
                return connection.execute(back.values(**waiting)).rowcount == 1
        cancelled = row.status == "cancelling"

        def end(connection: sa.Connection) -> bool:
            ended = {"status": "ended", "ended_at": datetime.now(UTC)}
            if cancelled:
                ended["status"] = "cancelled"
            return (
                connection.execute(sa.update(rollouts).where(*mine).values(**ended)).rowcount == 1
            )

        return ingest_attempt(self.store, row.team_id, Attempt(trace_id, events, end))

    # -- inside -------------------------------------------------------------------------------------

    def _give_up(self, now: datetime) -> None:
        """Put rollouts whose worker is gone back into the queue; those that cost too many end as errors."""
        rollouts = tables.rollouts
        expired = (
            rollouts.c.status.in_(HELD),
            rollouts.c.lease_expires_at < now,
        )
        with self.store.read() as connection:
            if (
                connection.execute(sa.select(rollouts.c.trace_id).where(*expired).limit(1)).first()
                is None
            ):
                return
        with self.store.begin() as connection:
            cancelling = (*expired, rollouts.c.status == "cancelling")
            _end(connection, cancelling, "cancelled", "Cancelled.")
            hopeless = (*expired, rollouts.c.attempt >= MOST_ATTEMPTS)
            lost = f"{MOST_ATTEMPTS} workers were lost while they played it."
            _end(connection, hopeless, "error", lost)
            connection.execute(sa.update(rollouts).where(*expired).values(**_WAITING))

    def _job_known(self, team: str, job_id: str) -> bool:
        jobs = tables.jobs
        with self.store.read() as connection:
            row = connection.execute(sa.select(jobs.c.team_id).where(jobs.c.id == job_id)).first()
        if row is not None and row.team_id != team:
            raise ConflictError(f"Job {job_id!r} is not of this key's team.")
        return row is not None


def _end(
    connection: sa.Connection, which: Sequence[sa.ColumnElement[bool]], status: str, error: str
) -> int:
    """End rollouts that nobody will play any more, and their runs; returns how many."""
    rollouts, runs = tables.rollouts, tables.runs
    ended = {"status": status, "ended_at": datetime.now(UTC)}
    theirs = runs.c.trace_id.in_(sa.select(rollouts.c.trace_id).where(*which))
    connection.execute(sa.update(runs).where(theirs).values(**ended, error=error))
    return connection.execute(sa.update(rollouts).where(*which).values(**ended)).rowcount


def _due(now: datetime) -> sa.ColumnElement[bool]:
    """Rollouts that may be taken: those that wait, and not for a moment that is still to come."""
    rollouts = tables.rollouts
    later = rollouts.c.lease_expires_at
    return sa.and_(rollouts.c.status == "queued", sa.or_(later.is_(None), later <= now))


def _shares(
    connection: sa.Connection, due: sa.ColumnElement[bool], most: int
) -> Counter[tuple[str, str | None]]:
    """Return how many rollouts to take of each team's job, `most` in all.

    One by one they go to the team with the fewest running, and there to the job with the fewest; the older first.
    """
    rollouts = tables.rollouts
    query = (
        sa.select(
            rollouts.c.team_id,
            rollouts.c.job_id,
            sa.func.count(sa.case((due, 1))).label("waiting"),
            sa.func.count(sa.case((rollouts.c.status != "queued", 1))).label("held"),
            sa.func.min(rollouts.c.created_at).label("oldest"),
        )
        .where(rollouts.c.status.in_(OPEN))
        .group_by(rollouts.c.team_id, rollouts.c.job_id)
    )
    jobs = connection.execute(query).all()
    teams: Counter[str] = Counter()
    for job in jobs:
        teams[job.team_id] += job.held
    shares: Counter[tuple[str, str | None]] = Counter()
    for _ in range(most):
        waiting = [job for job in jobs if job.waiting > shares[job.team_id, job.job_id]]
        if not waiting:
            break
        next_one = min(
            waiting,
            key=lambda job: (
                teams[job.team_id],
                job.held + shares[job.team_id, job.job_id],
                job.oldest,
            ),
        )
        teams[next_one.team_id] += 1
        shares[next_one.team_id, next_one.job_id] += 1
    return shares


def spec_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a submitted rollout."""
    kept = (
        "env",
        "task",
        "slug",
        "args",
        "agent",
        "runtime_config",
        "verifier",
        "group_id",
        "attempt",
    )
    spec = {name: body[name] for name in kept if body.get(name) is not None}
    if "group_id" in spec:
        spec["group_id"] = plain(str(spec["group_id"]))
    return spec
