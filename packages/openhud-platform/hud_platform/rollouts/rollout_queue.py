"""Queue of the rollouts that the platform plays itself: a leased queue, shared evenly by teams and their jobs.

A rollout and its run (`tables.runs`) end in one transaction; the result of an attempt that lost its lease is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud import exact_json
from hud.errors import ConflictError, HudError, NotFoundError, StoreError
from hud.fleet.attempts.held_attempts import MOST_AHEAD
from hud.processes.backoff import Backoff
from hud.trace import dashed, plain
from hud_platform.leases.lease_statements import shape_of, values_of
from hud_platform.leases.leased_queue import Lease, LeasedQueue, Only, Which
from hud_platform.rollouts.matching import Offer
from hud_platform.rollouts.nodes import Node
from hud_platform.rollouts.queue_statements import Seen, ending, looking
from hud_platform.store import tables
from hud_platform.store.attempts import forget_steps
from hud_platform.store.reporting import enter_job, enter_runs

DEEP = 8
"""For a node to take rollouts ahead, as many must wait as so many nodes of its size play, and twice those that it takes."""
PAUSES = Backoff(1.0)
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
    needs: str | None
    created_at: datetime
    """Date of its submission."""


@dataclass(frozen=True)
class Submitted:
    """A rollout to be queued."""

    trace_id: str
    job_id: str | None
    spec: dict[str, Any]
    needs: str | None = None
    """See `matching.needs_of`."""

    def columns(self) -> dict[str, Any]:
        """Return what is known of its run, by columns."""
        spec = self.spec
        columns = {
            "job_id": self.job_id,
            "group_id": spec.get("group_id"),
            "slug": spec.get("slug"),
        }
        return {name: value for name, value in columns.items() if value is not None}


class Rollouts(LeasedQueue[Taken]):
    """The rollouts of one store."""

    table = tables.rollouts
    waiting, running, cancelling = "queued", "running", "cancelling"
    fair_by = ("team_id", "job_id")
    lease_seconds = 30.0
    most_attempts = 4
    """Attempts that infrastructure may break before a rollout is an error."""
    most_preemptions = 16
    """Attempts whose worker may be lost or hand them back before a rollout is an error."""

    def submit(
        self,
        team: str,
        key_id: str | None,
        trace_id: str,
        job_id: str | None,
        spec: dict[str, Any],
        needs: str | None = None,
    ) -> str:
        """Queue one rollout, see `submit_many`; raises the error of one that is refused."""
        [status] = self.submit_many(team, key_id, [Submitted(trace_id, job_id, spec, needs)])
        if isinstance(status, HudError):
            raise status
        return status

    def submit_many(
        self, team: str, key_id: str | None, submitted: Sequence[Submitted]
    ) -> list[str | HudError]:
        """Queue rollouts in one transaction; those that are known already stay as they are. Returns the status of each.

        One that is refused costs no other; its error stands in its place. Raises `StoreError`.
        """
        try:
            statuses = self._submit(team, key_id, submitted)
        except StoreError:
            raise
        except (HudError, IntegrityError) as error:
            if len(submitted) > 1:
                by_one = [self.submit_many(team, key_id, [submission]) for submission in submitted]
                return [status for (status,) in by_one]
            if isinstance(error, HudError):
                return [error]
            # The client repeated a request whose answer it missed, while the first was still being served.
            statuses = self._submit(team, key_id, submitted)
        self.changes += 1
        return [statuses[submission.trace_id] for submission in submitted]

    def _submit(
        self, team: str, key_id: str | None, submitted: Sequence[Submitted]
    ) -> dict[str, str]:
        rollouts, traces = self.table, [submission.trace_id for submission in submitted]
        named = {
            submission.job_id: submission.spec.get("slug")
            for submission in submitted
            if submission.job_id is not None
        }
        of_submitted = (rollouts.c.team_id == team, rollouts.c.trace_id.in_(traces))
        with self.store.begin() as connection:
            for job_id in self._unknown_jobs(connection, team, named):
                enter_job(connection, team, job_id, str(named[job_id] or "job"), 1, None)
            enter_runs(
                connection,
                team,
                {submission.trace_id: submission.columns() for submission in submitted},
            )
            query = sa.select(rollouts.c.trace_id, rollouts.c.spec).where(*of_submitted)
            specs = {row.trace_id: row.spec for row in connection.execute(query)}
            _refuse_others(specs, submitted)
            rows = {
                submission.trace_id: waiting_row(
                    team,
                    key_id,
                    submission.trace_id,
                    submission.job_id,
                    submission.spec,
                    submission.needs,
                )
                for submission in submitted
                if submission.trace_id not in specs
            }
            if rows:
                connection.execute(sa.insert(rollouts), list(rows.values()))
            statuses = connection.execute(
                sa.select(rollouts.c.trace_id, rollouts.c.status).where(*of_submitted)
            )
            return {trace: str(status) for trace, status in statuses}

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

    def count_of_job(self, team: str, *, job_id: str) -> int:
        """Return how many rollouts of a job there are, open or ended."""
        rollouts = tables.rollouts
        of_job = (rollouts.c.team_id == team, rollouts.c.job_id == job_id)
        return int(self.store.value(sa.select(sa.func.count()).where(*of_job)))

    def tried(self, team: str, trace_id: str) -> int:
        """Return how many attempts there were at a rollout; 0 where it is none of the queue's."""
        rollouts = self.table
        of_trace = (rollouts.c.trace_id == trace_id, rollouts.c.team_id == team)
        return int(self.store.value(sa.select(rollouts.c.attempt).where(*of_trace)) or 0)

    def record(self, team: str, trace_id: str) -> dict[str, Any]:
        """Return a rollout as it stands in the queue, with its attempts; raises `NotFoundError` where there is none."""
        rollouts, lost, nodes = self.table, tables.lost_attempts, tables.fleet_nodes
        of_trace = (rollouts.c.trace_id == trace_id, rollouts.c.team_id == team)
        row = self.store.row(sa.select(rollouts).where(*of_trace))
        if row is None:
            raise NotFoundError(f"The platform does not play the rollout {trace_id!r}.")
        query = sa.select(lost, nodes.c.name).outerjoin(nodes, nodes.c.worker == lost.c.worker)
        ended = self.store.rows(query.where(lost.c.trace_id == trace_id).order_by(lost.c.attempt))
        attempts = [
            {
                "attempt": attempt.attempt,
                "node": attempt.name or attempt.worker,
                "outcome": attempt.outcome,
                "ended_at": attempt.ended_at.isoformat(),
            }
            for attempt in ended
        ]
        if row.worker is not None and row.attempt not in [attempt.attempt for attempt in ended]:
            name = self.store.value(sa.select(nodes.c.name).where(nodes.c.worker == row.worker))
            last = {"attempt": row.attempt, "node": name or row.worker, "outcome": row.status}
            over = None if row.ended_at is None else row.ended_at.isoformat()
            attempts.append({**last, "ended_at": over})
        snapshots = tables.rollout_snapshots
        of_snapshots = sa.select(snapshots).where(snapshots.c.trace_id == trace_id)
        snapshot = self.store.row(of_snapshots)
        return {
            "trace_id": dashed(row.trace_id),
            "status": row.status,
            "faults": row.faults,
            "preemptions": row.preemptions,
            "needs": None if row.needs is None else exact_json.loads(row.needs),
            "attempts": attempts,
            "snapshot": None
            if snapshot is None
            else {
                "attempt": snapshot.attempt,
                "taken": snapshot.taken,
                "bytes": snapshot.bytes,
                "taken_at": snapshot.taken_at.isoformat(),
            },
        }

    def take_for(
        self, node: Node, most: int, free: dict[str, float], *, ahead: int = 0
    ) -> list[Taken]:
        """Lease up to `most` rollouts to a node, of those whose requirements it meets; `free`: see `matching.AMOUNTS`.

        Those that require something come first: fewer nodes can play them. Up to `ahead` more are leased of those that
        require nothing, where so many wait that no other node goes short for long.
        """
        if node.state != "open":
            return []
        taken = list[Taken]()
        team_only = {} if node.team_id is None else {"team_id": node.team_id}
        whatever: Only = {**team_only, "needs": None}
        seen = self._look(node, whatever, max(DEEP * node.rollouts, 2 * ahead))
        # Also of those that were played and are not brought yet a node holds so many at most.
        room = max(0, (1 + 2 * MOST_AHEAD) * node.rollouts - seen.held)
        most = min(most, room)
        ahead = min(ahead, room - most)
        offer = node.offer(free)
        for needs in self._waiting_needs() if seen.some_need else ():
            left, fit = offer, 0
            while fit < most - len(taken) and not left.lacks(needs):
                left, fit = left.without(needs), fit + 1
            fitting = self.take(node.worker, fit, {**team_only, "needs": needs}) if fit else []
            for _ in fitting:
                offer = offer.without(needs)
            taken += fitting
        more = most - len(taken) + (ahead if seen.many else 0)
        if more > 0 and (seen.due or seen.expired):
            taken += self.lease(node.worker, more, seen.at, whatever, expired=seen.expired)
        return taken

    def _look(self, node: Node, whatever: Only, many: int) -> Seen:
        """Look at the queue in one query; `whatever`: values of the rollouts that require nothing."""
        now = self.store.clock.now()
        query = looking(self.queue, shape_of(whatever))
        values = {"now": now, "before": max(0, many - 1), "holder": node.worker}
        (row,) = self.store.rows(query, **values, **values_of(whatever))
        some_need, due, expired, enough, held = row
        return Seen(now, bool(some_need), bool(due), bool(expired), bool(enough), int(held))

    def waiting_for(self, team: str | None, offers: Sequence[Offer]) -> int:
        """Return how many rollouts of a team (None: of every team) wait that one of these offers could play; without
        offers, how many wait."""
        rollouts = self.table
        of_team = () if team is None else (rollouts.c.team_id == team,)
        query = sa.select(rollouts.c.needs, sa.func.count())
        waiting = query.where(rollouts.c.status == self.waiting, *of_team).group_by(
            rollouts.c.needs
        )
        return sum(
            int(count)
            for needs, count in self.store.rows(waiting)
            if needs is None or not offers or any(not offer.lacks(needs) for offer in offers)
        )

    def held_by(self, key_id: str | None) -> int:
        """Return how many rollouts the workers of a pass hold (None: those that the platform started)."""
        rollouts, nodes = self.table, tables.fleet_nodes
        theirs = sa.select(nodes.c.worker).where(nodes.c.key_id.is_not_distinct_from(key_id))
        query = sa.select(sa.func.count()).where(self._held, rollouts.c.worker.in_(theirs))
        return int(self.store.value(query))

    def may_retry(self, row: sa.Row[Any]) -> bool:
        """Return whether a rollout, held as `row`, is played again where infrastructure broke the attempt at it."""
        return bool(row.status == self.running and row.faults + 1 < self.most_attempts)

    def play_again(self, lease: Lease, row: sa.Row[Any]) -> bool:
        """Put a rollout back that infrastructure broke; False where the lease is lost or cancelled."""
        # What broke may need a moment to be there again.
        return self.retry(lease, PAUSES.seconds(row.faults + 1))

    def end_played(self, connection: sa.Connection, leases: Sequence[Lease]) -> set[Lease]:
        """End rollouts whose attempts came to their end; returns those of the leases that are held."""
        now = datetime.now(UTC)
        return self.leases(self.of_leases(connection, ending(self.queue), leases, now=now))

    def _waiting_needs(self) -> list[str]:
        rollouts = self.table
        waiting = (rollouts.c.status == self.waiting, rollouts.c.needs.is_not(None))
        return sorted(self.store.values(sa.select(rollouts.c.needs).where(*waiting).distinct()))

    def item(self, row: sa.Row[Any], lease: Lease) -> Taken:
        names = ("team_id", "key_id", "job_id", "spec", "needs", "created_at")
        return Taken(lease.id, lease.attempt, **{name: getattr(row, name) for name in names})

    def used_up(self) -> sa.ColumnElement[bool]:
        return self.table.c.preemptions + 1 >= self.most_preemptions

    def when_lost(self) -> dict[str, Any]:
        return {"preemptions": self.table.c.preemptions + 1}

    when_released = when_lost

    def count_returned(self, connection: sa.Connection, worker: str, count: int) -> None:
        self._count_preemptions(connection, worker, count)

    def when_broken(self) -> dict[str, Any]:
        return {"faults": self.table.c.faults + 1}

    def when_requeued(self) -> dict[str, Any]:
        return {"faults": 0, "preemptions": 0}

    def note(self, connection: sa.Connection, which: Which, outcome: str) -> None:
        rollouts, now = self.table, datetime.now(UTC)
        query = sa.select(rollouts.c.trace_id, rollouts.c.attempt, rollouts.c.worker).where(*which)
        rows = [
            {**row._mapping, "outcome": outcome, "ended_at": now}
            for row in connection.execute(query)
        ]
        if not rows:
            return
        connection.execute(sa.insert(tables.lost_attempts), rows)
        if outcome != "broken":
            for worker, count in Counter(row["worker"] for row in rows).items():
                self._count_preemptions(connection, worker, count)
        forget_steps(connection, [row["trace_id"] for row in rows])

    def _count_preemptions(self, connection: sa.Connection, worker: str, count: int) -> None:
        nodes = tables.fleet_nodes
        update = sa.update(nodes).where(nodes.c.worker == worker)
        connection.execute(update.values(preemptions=nodes.c.preemptions + count))

    def end_lost(self, connection: sa.Connection, which: Which) -> None:
        lost = (
            f"{self.most_preemptions} workers were lost, or handed it back, while they played it."
        )
        _end(connection, which, "error", lost)

    def end_released(self, connection: sa.Connection, which: Which) -> None:
        self.end_lost(connection, (*which, self.used_up()))

    def end_cancelled(self, connection: sa.Connection, which: Which) -> None:
        _end(connection, which, "cancelled", "Cancelled.")

    def _unknown_jobs(
        self, connection: sa.Connection, team: str, ids: Collection[str]
    ) -> list[str]:
        """Return which of these jobs are new; raises `ConflictError` where one is another team's."""
        jobs = tables.jobs
        rows = connection.execute(sa.select(jobs.c.id, jobs.c.team_id).where(jobs.c.id.in_(ids)))
        owners = {row.id: row.team_id for row in rows}
        for job_id, owner in owners.items():
            if owner != team:
                raise ConflictError(f"Job {job_id!r} is not of this key's team.")
        return [job_id for job_id in ids if job_id not in owners]


def _refuse_others(specs: dict[str, Any], submitted: Sequence[Submitted]) -> None:
    """Raise `ConflictError` for a rollout that is known with another content: it would get that one's result."""
    for submission in submitted:
        if submission.trace_id in specs and specs[submission.trace_id] != submission.spec:
            raise ConflictError(
                f"A rollout {dashed(submission.trace_id)} was submitted before, with another content; give each an id of its own."
            )


def _end(connection: sa.Connection, which: Which, status: str, error: str) -> int:
    """End rollouts that are not played any more, and their runs; returns how many."""
    rollouts, runs = tables.rollouts, tables.runs
    ended = {"status": status, "ended_at": datetime.now(UTC)}
    theirs = runs.c.trace_id.in_(sa.select(rollouts.c.trace_id).where(*which))
    connection.execute(sa.update(runs).where(theirs).values(**ended, error=error))
    return connection.execute(sa.update(rollouts).where(*which).values(**ended)).rowcount


def waiting_row(
    team: str,
    key_id: str | None,
    trace_id: str,
    job_id: str | None,
    spec: dict[str, Any],
    needs: str | None,
) -> dict[str, Any]:
    """Return the row of a rollout that waits to be played."""
    return {
        "trace_id": trace_id,
        "team_id": team,
        "key_id": key_id,
        "job_id": job_id,
        "spec": spec,
        "needs": needs,
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
