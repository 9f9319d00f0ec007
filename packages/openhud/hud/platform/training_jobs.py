"""Jobs of training runs: the rollouts of each step, and the evaluations of checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud.platform.store import Store, tables
from hud.platform.store.job_status import statuses
from hud.platform.store.job_sums import sums_of
from hud.platform.training.runs import TrainingRuns
from hud.train.monitoring.progress import scores_of

MOST_RUNS = 4_096
"""Maximum number of rollouts of one step that are read."""
_EARLIER_RUNS = 50
"""Maximum number of training runs searched for the run of a job, newest first."""
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

    def runs_of(self, job_ids: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the training run of each job of one of the newest runs: its id as `run`, and its number of `held_out` jobs."""
        rows, _ = TrainingRuns(self.store, self.team).page(None, _EARLIER_RUNS, 0)
        by_job: dict[str, dict[str, Any]] = {}
        for row in rows:
            state = row["state"]
            scored = [score.get("job_id") for score in state.get("scores") or []]
            shown = {"run": str(row["id"]), "held_out": sum(job is not None for job in scored)}
            for job in (*(state.get("jobs") or []), *(state.get("evaluations") or []), *scored):
                if job in job_ids:
                    by_job.setdefault(job, shown)
        return by_job

    def run_of(self, job: dict[str, Any]) -> str | None:
        """Return the id of the training run of a job (see `records.find_job`), or None."""
        shown = self.runs_of([job["id"]]).get(job["id"])
        return None if shown is None else str(shown["run"])
