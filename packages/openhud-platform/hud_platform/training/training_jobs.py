"""Jobs of training runs: the rollouts of each step, and the evaluations of checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud.eval.results.held_out_scores import scores_of
from hud_platform.store import Store, tables
from hud_platform.store.job_status import statuses
from hud_platform.store.job_sums import sums_of

MOST_RUNS = 4_096
"""Maximum number of rollouts of one step that are read."""
_ROLLOUT = (
    *("trace_id", "slug", "group_id", "attempt", "status", "reward", "failure_kind"),
    *("checkpoint", "turns", "completion_tokens", "error", "stop_reason", "content"),
)

Run = dict[str, Any]


class TrainingJobs:
    """Jobs of one team's training runs, which are in the form of `TrainingRuns.get`."""

    def __init__(self, store: Store, team: str) -> None:
        self.store, self.team = store, team

    def shown(self, run: Run) -> list[dict[str, Any]]:
        """Return the jobs of a run: those of its rollouts (`step` None), then its evaluations, by step."""
        scores = {
            score.job_id: score.as_dict() for score in scores_of(run["state"]) if score.job_id
        }
        ids = [*self.rollouts(run), *scores]
        jobs = tables.jobs
        with self.store.read() as connection:
            query = sa.select(jobs).where(jobs.c.id.in_(ids), jobs.c.team_id == self.team)
            rows = {row.id: row for row in connection.execute(query)}
            sums = sums_of(connection, list(rows))
            states = statuses(connection, list(rows.values()))
        return [
            {
                "id": job_id,
                "name": rows[job_id].name,
                "status": states[job_id],
                "step": scores[job_id]["step"] if job_id in scores else None,
                "score": scores.get(job_id),
                **sums[job_id].shown(),
            }
            for job_id in ids
            if job_id in rows
        ]

    def rollouts(self, run: Run) -> list[str]:
        """Return the ids of the jobs of a run's rollouts: one for its start and one for each resumption."""
        return [str(job_id) for job_id in run["state"].get("jobs") or []]

    def of_step(self, run: Run, step: int) -> list[dict[str, Any]]:
        """Return the rollouts that ended during a step (counted from 0), in the order of their starts.
        Synchronous training plays a step's rollouts within the step. With a policy lag, a step uses finished rollouts.
        Raises `NotFoundError` for a step that has not finished.
        """
        metrics = tables.training_metrics
        runs = tables.runs
        query = sa.select(metrics.c.step, metrics.c.created_at).where(
            metrics.c.training_run_id == run["id"], metrics.c.step.in_((step - 1, step))
        )
        with self.store.read() as connection:
            ends = {row.step: row.created_at for row in connection.execute(query)}
            if step not in ends:
                raise NotFoundError(f"Step {step + 1} of this run has not finished.")
            began = ends.get(step - 1, datetime.fromisoformat(run["created_at"]))
            rows = connection.execute(
                sa.select(*(runs.c[name] for name in _ROLLOUT))
                .where(
                    runs.c.job_id.in_(self.rollouts(run)),
                    runs.c.team_id == self.team,
                    runs.c.ended_at > began,
                    runs.c.ended_at <= ends[step],
                )
                .order_by(runs.c.started_at, runs.c.trace_id)
                .limit(MOST_RUNS)
            ).mappings()
            return [{str(name): row[name] for name in row} for row in rows]

    def folded_under(self, job_ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return, by job, its training run as `run`, and the numbers of jobs that the list folds under it, by purpose, as `folded`.

        Those are the other jobs of its training run, and the jobs of subagents that their runs called. Jobs without either are left out.
        """
        jobs = tables.jobs
        columns = (jobs.c.id, jobs.c.training_run_id, jobs.c.purpose)
        with self.store.read() as connection:
            own = connection.execute(sa.select(*columns).where(jobs.c.id.in_(job_ids))).all()
            trained = {job.training_run_id for job in own if job.training_run_id is not None}
            counts = self._counts_under(connection, job_ids, trained)
        shown: dict[str, dict[str, Any]] = {}
        for job in own:
            run = job.training_run_id
            folded = dict(counts.get(run or job.id, {}))
            if run is not None:
                folded[job.purpose] -= 1
            folded = {purpose: count for purpose, count in folded.items() if count}
            if run is not None or folded:
                shown[job.id] = {"run": run, "folded": folded}
        return shown

    def _counts_under(
        self, connection: sa.Connection, job_ids: Collection[str], runs: Collection[str]
    ) -> dict[str, dict[str, int]]:
        """Return the numbers of jobs by purpose, by the training run or the calling job that they belong to."""
        jobs = tables.jobs
        caller = jobs.alias("caller")
        of_run = (
            sa.select(jobs.c.training_run_id.label("key"), jobs.c.purpose, sa.func.count())
            .where(jobs.c.training_run_id.in_(runs), jobs.c.team_id == self.team)
            .group_by(jobs.c.training_run_id, jobs.c.purpose)
        )
        key = sa.func.coalesce(caller.c.training_run_id, caller.c.id).label("key")
        called = (
            sa.select(key, jobs.c.purpose, sa.func.count())
            .join(caller, caller.c.id == jobs.c.called_by)
            .where(
                sa.or_(caller.c.id.in_(job_ids), caller.c.training_run_id.in_(runs)),
                jobs.c.team_id == self.team,
            )
            .group_by(key, jobs.c.purpose)
        )
        counts: dict[str, dict[str, int]] = {}
        for query in (of_run, called):
            for row in connection.execute(query):
                counts.setdefault(row[0], {})[row[1]] = row[2]
        return counts

    def run_of(self, job: dict[str, Any]) -> str | None:
        """Return the id of the training run of a job (see `records.find_job`), or None."""
        jobs = tables.jobs
        run: str | None = self.store.value(
            sa.select(jobs.c.training_run_id).where(jobs.c.id == job["id"])
        )
        return run
