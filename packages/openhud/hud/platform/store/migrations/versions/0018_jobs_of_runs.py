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
        loaded = json.loads(state) if isinstance(state, str) else state or {}
        scored = [score.get("job_id") for score in loaded.get("scores") or []]
        ids = [*(loaded.get("jobs") or []), *(loaded.get("evaluations") or []), *scored]
        for start in range(0, len(ids), 500):
            some = [job for job in ids[start : start + 500] if job]
            connection.execute(
                sa.update(jobs).where(jobs.c.id.in_(some)).values(training_run_id=run_id)
            )
