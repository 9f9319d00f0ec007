"""Runs that each model was trained on, also after another model's pass over them."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "trained_runs",
        sa.Column("model_id", sa.String(32), primary_key=True),
        sa.Column("trace_id", sa.String(32), primary_key=True),
    )
    op.create_index("ix_trained_runs_trace_id", "trained_runs", ["trace_id"])
    op.execute(
        "INSERT INTO trained_runs (model_id, trace_id) SELECT DISTINCT model_id, trace_id FROM trainer_logprobs"
    )
    op.drop_index("trainer_logprobs_of_model", "trainer_logprobs", if_exists=True)
