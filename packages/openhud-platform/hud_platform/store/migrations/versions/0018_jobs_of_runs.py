"""Training runs and calling jobs of jobs, under which the list of jobs folds them."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("called_by", sa.String(32)))
    op.add_column("jobs", sa.Column("training_run_id", sa.String(32)))
    op.create_index("ix_jobs_called_by", "jobs", ["called_by"])
    op.create_index("ix_jobs_training_run_id", "jobs", ["training_run_id"])
    connection = op.get_bind()
    jobs = sa.table("jobs", sa.column("id"), sa.column("training_run_id"))
    rows = connection.execute(sa.text("SELECT id, state FROM training_runs ORDER BY created_at"))
    for run_id, state in rows.all():
        loaded = json.loads(state) if isinstance(state, str) else state
        if not isinstance(loaded, dict):
            continue
        lists = [loaded.get(name) for name in ("jobs", "evaluations", "scores")]
        entries = [entry for values in lists if isinstance(values, list) for entry in values]
        named = [entry.get("job_id") if isinstance(entry, dict) else entry for entry in entries]
        ids = [job for job in named if isinstance(job, str) and len(job) == 32]
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            connection.execute(
                sa.update(jobs).where(jobs.c.id.in_(some)).values(training_run_id=run_id)
            )
