"""Jobs whose rollouts the platform plays: how they stand, playing what is missing, playing all of it again."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from hud.errors import UsageError
from hud.trace import new_id
from hud_platform.rollouts.rollout_queue import Rollouts, waiting_row
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert
from hud_platform.store.reporting import enter_job, new_run

_UNSET = ("error", "failure_kind", "stop_reason", "content", "ended_at")
_BEGUN: dict[str, Any] = {"status": "running", **dict.fromkeys(_UNSET)}


class HostedJobs:
    """The jobs of one team that the platform plays."""

    def __init__(self, store: Store, team: str) -> None:
        self.store = store
        self.team = team

    def standing(self, job_id: str) -> dict[str, int]:
        """Return how many rollouts of a job are `known`, `open`, and over but `unmeasured`."""
        rollouts, runs = tables.rollouts, tables.runs
        missing = sa.and_(rollouts.c.ended_at.is_not(None), runs.c.reward.is_(None))
        query = (
            sa.select(
                sa.func.count(),
                sa.func.count(sa.case((rollouts.c.ended_at.is_(None), 1))),
                sa.func.count(sa.case((missing, 1))),
            )
            .join(runs, runs.c.trace_id == rollouts.c.trace_id)
            .where(rollouts.c.job_id == job_id, rollouts.c.team_id == self.team)
        )
        (counts,) = self.store.rows(query)
        queued, still_open, unmeasured = counts
        return {"known": queued, "open": still_open, "unmeasured": unmeasured}

    def resume(self, job_id: str) -> int:
        """Queue again what of a job is over and was not measured, under the same traces; returns how many."""
        rollouts, runs = tables.rollouts, tables.runs
        ended = sa.select(rollouts.c.trace_id).where(
            rollouts.c.job_id == job_id,
            rollouts.c.team_id == self.team,
            rollouts.c.ended_at.is_not(None),
        )
        unmeasured = sa.select(runs.c.trace_id).where(
            runs.c.trace_id.in_(ended), runs.c.reward.is_(None)
        )
        with self.store.begin() as connection:
            trace_ids = connection.execute(unmeasured).scalars().all()
            connection.execute(
                sa.update(runs).where(runs.c.trace_id.in_(trace_ids)).values(**_BEGUN)
            )
            Rollouts(self.store).requeue(connection, trace_ids)
        return len(trace_ids)

    def repeat(self, job: dict[str, Any], key_id: str | None) -> str:
        """Queue every rollout of `job` (see `records.find_job`) again, as a new job; returns its id.

        Raises `UsageError` for a job that something else played: the platform does not know how.
        """
        rollouts = tables.rollouts
        query = sa.select(rollouts.c.spec, rollouts.c.needs).where(
            rollouts.c.job_id == job["id"], rollouts.c.team_id == self.team
        )
        specs = self.store.rows(query.order_by(rollouts.c.created_at))
        if not specs:
            raise UsageError(
                "The platform did not play this job, and does not know how. Play it again with hud eval."
            )
        new = new_id()
        with self.store.begin() as connection:
            enter_job(connection, self.team, new, job["name"], job["group_size"], job["taskset_id"])
        groups = {spec.get("group_id"): new_id() for spec, _ in specs}
        again = [
            ({**spec, "group_id": groups[spec.get("group_id")]}, needs) for spec, needs in specs
        ]
        self._queue(new, again, key_id)
        return new

    def _queue(
        self, job_id: str, specs: list[tuple[dict[str, Any], str | None]], key_id: str | None
    ) -> None:
        runs, queued = [], []
        for spec, needs in specs:
            trace_id = new_id()
            columns = {"job_id": job_id, "group_id": spec["group_id"], "slug": spec.get("slug")}
            runs.append(
                {**new_run(self.team, trace_id), **columns, "attempt": spec.get("attempt", 0)}
            )
            queued.append(waiting_row(self.team, key_id, trace_id, job_id, spec, needs))
        with self.store.begin() as connection:
            upsert(connection, tables.runs, runs)
            connection.execute(sa.insert(tables.rollouts), queued)
