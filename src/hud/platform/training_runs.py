"""Training runs: what was configured, how far it came, and what every step measured."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud.platform.store import tables
from hud.trace import new_id, plain

if TYPE_CHECKING:
    from hud.platform.store import Store


class TrainingRuns:
    """The training runs of one team's models."""

    def __init__(self, store: Store, team: str) -> None:
        self.store = store
        models = tables.models
        self._theirs = tables.training_runs.c.model_id.in_(
            sa.select(models.c.id).where(models.c.team_id == team)
        )

    def start(self, model_id: str, config: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """Record a run that begins, at step 0."""
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
        return _shown(row)

    def recent(self, model_id: str | None) -> list[dict[str, Any]]:
        """Return the runs, of one model or of all, newest first."""
        runs = tables.training_runs
        query = sa.select(runs).where(self._theirs).order_by(runs.c.created_at.desc())
        if model_id is not None:
            query = query.where(runs.c.model_id == model_id)
        with self.store.read() as connection:
            return [_shown(dict(row._mapping)) for row in connection.execute(query)]

    def get(self, run_id: str) -> dict[str, Any]:
        """Return one run."""
        runs = tables.training_runs
        with self.store.read() as connection:
            row = connection.execute(
                sa.select(runs).where(runs.c.id == plain(run_id), self._theirs)
            ).one_or_none()
        if row is None:
            raise NotFoundError(f"There is no training run {run_id!r}.")
        return _shown(dict(row._mapping))

    def change(
        self, run_id: str, status: str | None, state: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Set the status, and the named keys of the state; return the run."""
        runs = tables.training_runs
        found = self.get(run_id)
        values = {
            "status": status or found["status"],
            "state": {**found["state"], **(state or {})},
            "updated_at": datetime.now(UTC),
        }
        with self.store.begin() as connection:
            connection.execute(sa.update(runs).where(runs.c.id == found["id"]).values(**values))
        return self.get(run_id)

    def report(
        self,
        run_id: str,
        step: int,
        metrics: dict[str, Any],
        next_step: int,
        state: dict[str, Any] | None,
    ) -> None:
        """Record a step's metrics and where the run goes on, both or neither."""
        runs, steps = tables.training_runs, tables.training_metrics
        found = self.get(run_id)
        now = datetime.now(UTC)
        key = {"training_run_id": found["id"], "step": step}
        with self.store.begin() as connection:
            same = (steps.c.training_run_id == found["id"], steps.c.step == step)
            connection.execute(sa.delete(steps).where(*same))
            connection.execute(sa.insert(steps).values(**key, metrics=metrics, created_at=now))
            connection.execute(
                sa.update(runs)
                .where(runs.c.id == found["id"])
                .values(
                    next_step=next_step,
                    updated_at=now,
                    state={**found["state"], **(state or {})},
                )
            )

    def steps(self, run_id: str) -> list[dict[str, Any]]:
        """Return every step's metrics, in order."""
        steps = tables.training_metrics
        found = self.get(run_id)
        with self.store.read() as connection:
            rows = connection.execute(
                sa.select(steps.c.step, steps.c.metrics)
                .where(steps.c.training_run_id == found["id"])
                .order_by(steps.c.step)
            )
            return [{"step": row.step, "metrics": row.metrics} for row in rows]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    moments = {name: row[name].isoformat() for name in ("created_at", "updated_at")}
    return {**row, "config": row["config"] or {}, "state": row["state"] or {}, **moments}
