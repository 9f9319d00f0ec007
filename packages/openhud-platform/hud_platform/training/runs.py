"""Training runs: configuration, state, and the metrics of every step."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud.processes.presence import is_gone
from hud.trace import is_id, new_id, plain
from hud_platform.store import Store, tables
from hud_platform.store.queries import begins_with, in_parts


class TrainingRuns:
    """Training runs of one team's models."""

    def __init__(self, store: Store, team: str) -> None:
        self.store, self.team = store, team
        models = tables.models
        self._theirs = tables.training_runs.c.model_id.in_(
            sa.select(models.c.id).where(models.c.team_id == team)
        )

    def start(self, model_id: str, config: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Record a new run at step 0."""
        now = datetime.now(UTC)
        row = {
            "id": new_id(),
            "model_id": model_id,
            "config": config,
            "status": "running",
            "created_at": now,
            "updated_at": now,
            "next_step": 0,
            "state": state,
        }
        with self.store.begin() as connection:
            connection.execute(sa.insert(tables.training_runs).values(**row))
            self._mark_jobs(connection, str(row["id"]), state)
        return _shown(row)

    def recent(self, model_id: str | None) -> list[dict[str, Any]]:
        """Return the newest runs, of one model or of all, newest first."""
        runs = tables.training_runs
        query = sa.select(runs).where(self._theirs).order_by(runs.c.created_at.desc())
        if model_id is not None:
            query = query.where(runs.c.model_id == model_id)
        return [_shown(dict(row._mapping)) for row in self.store.rows(query)]

    def page(
        self, model_id: str | None, limit: int, offset: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a page of the runs, newest first, each with its last step's `metrics`, and their total number."""
        runs, steps = tables.training_runs, tables.training_metrics
        conditions = (
            [self._theirs] if model_id is None else [self._theirs, runs.c.model_id == model_id]
        )
        newest = sa.select(runs).where(*conditions).order_by(runs.c.created_at.desc(), runs.c.id)
        rows, total = self.store.page(newest, limit, offset)
        last = [
            sa.and_(steps.c.training_run_id == row.id, steps.c.step == row.next_step - 1)
            for row in rows
        ]
        query = sa.select(steps.c.training_run_id, steps.c.metrics)
        newest_steps = self.store.rows(query.where(sa.or_(sa.false(), *last)))
        metrics = {row.training_run_id: row.metrics for row in newest_steps}
        return [
            {**_shown(dict(row._mapping)), "metrics": metrics.get(row.id, {})} for row in rows
        ], total

    def get(self, run_id: str) -> dict[str, Any]:
        """Return the run with this id, or with a unique start of it. Raises `NotFoundError` where there is none."""
        runs = tables.training_runs
        same = begins_with(runs.c.id, run_id)
        rows = self.store.rows(sa.select(runs).where(same, self._theirs).limit(2))
        if not rows:
            raise NotFoundError(f"There is no training run {run_id!r}.")
        if len(rows) > 1:
            raise NotFoundError(
                f"Several training runs begin with {run_id!r}; give more of the id."
            )
        return _shown(dict(rows[0]._mapping))

    def change(
        self,
        run_id: str,
        status: str | None,
        state: dict[str, Any] | None,
        config: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Set the status, the named keys of the state, and the configuration; return the run."""
        runs = tables.training_runs
        row = self.get(run_id)
        values: dict[str, Any] = {
            "status": status or runs.c.status,
            "updated_at": datetime.now(UTC),
        }
        if config is not None:
            values["config"] = config
        with self.store.begin() as connection:
            merged = _merged(connection, row["id"], state)
            connection.execute(
                sa.update(runs).where(runs.c.id == row["id"]).values(state=merged, **values)
            )
            self._mark_jobs(connection, row["id"], merged)
        return self.get(run_id)

    def report(
        self,
        run_id: str,
        step: int,
        metrics: dict[str, Any],
        next_step: int,
        state: dict[str, Any] | None,
    ) -> None:
        """Record a step's metrics and the run's new state in one transaction."""
        runs, steps = tables.training_runs, tables.training_metrics
        row = self.get(run_id)
        now = datetime.now(UTC)
        key = {"training_run_id": row["id"], "step": step}
        with self.store.begin() as connection:
            same = (steps.c.training_run_id == row["id"], steps.c.step == step)
            connection.execute(sa.delete(steps).where(*same))
            connection.execute(sa.insert(steps).values(**key, metrics=metrics, created_at=now))
            merged = _merged(connection, row["id"], state)
            connection.execute(
                sa.update(runs)
                .where(runs.c.id == row["id"])
                .values(next_step=next_step, updated_at=now, state=merged)
            )
            self._mark_jobs(connection, row["id"], merged)

    def _mark_jobs(self, connection: sa.Connection, run_id: str, state: dict[str, Any]) -> None:
        """Set the run of its jobs. At every report: a job's own record may arrive after the report that names it."""
        jobs = tables.jobs
        for some in in_parts(_named_jobs(state)):
            theirs = (jobs.c.id.in_(some), jobs.c.team_id == self.team)
            unmarked = (jobs.c.training_run_id.is_(None),)
            connection.execute(
                sa.update(jobs).where(*theirs, *unmarked).values(training_run_id=run_id)
            )

    @staticmethod
    def mark_lost(store: Store, error: str) -> None:
        """Mark runs of all teams as interrupted if their launcher exited without recording how they ended."""
        runs = tables.training_runs
        with store.begin() as connection:
            rows = connection.execute(
                sa.select(runs.c.id, runs.c.state).where(runs.c.status == "running")
            ).all()
            for row in rows:
                state = row.state or {}
                if is_gone(str((state.get("launched") or {}).get("by"))):
                    marked = {"status": "interrupted", "state": {**state, "error": error}}
                    connection.execute(sa.update(runs).where(runs.c.id == row.id).values(**marked))

    def steps(self, run_id: str) -> list[dict[str, Any]]:
        """Return every step's metrics, in order."""
        steps = tables.training_metrics
        row = self.get(run_id)
        query = sa.select(steps.c.step, steps.c.metrics)
        steps_of_run = query.where(steps.c.training_run_id == row["id"]).order_by(steps.c.step)
        return [{"step": row.step, "metrics": row.metrics} for row in self.store.rows(steps_of_run)]


def _merged(connection: sa.Connection, run_id: str, state: dict[str, Any] | None) -> dict[str, Any]:
    """Return a run's state with some keys changed. Read in the transaction that writes it: the trainer and the launcher
    write concurrently."""
    runs = tables.training_runs
    query = sa.select(runs.c.state).where(runs.c.id == run_id).with_for_update()
    return {**(connection.execute(query).scalar_one() or {}), **(state or {})}


def _named_jobs(state: dict[str, Any]) -> list[str]:
    """Return the ids of the jobs that a state names. Clients report it: entries of another form are left out."""
    lists = [state.get(name) for name in ("jobs", "evaluations", "scores")]
    entries = [entry for values in lists if isinstance(values, list) for entry in values]
    ids = [entry.get("job_id") if isinstance(entry, dict) else entry for entry in entries]
    return [plain(job) for job in ids if isinstance(job, str) and is_id(job)]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    moments = {name: row[name].isoformat() for name in ("created_at", "updated_at")}
    return {**row, "config": row["config"] or {}, "state": row["state"] or {}, **moments}
