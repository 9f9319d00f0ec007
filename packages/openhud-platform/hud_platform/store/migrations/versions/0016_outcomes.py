"""Outcomes that become known after a run, the rules that make rewards of them, and the rewards that were trained on."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "outcomes",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("supersedes", sa.String(32)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("outcomes_of_trace", "outcomes", ["trace_id", "created_at"])
    op.create_table(
        "reward_rules",
        sa.Column("team_id", sa.String(32), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("rule", sa.JSON, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.add_column("runs", sa.Column("reward_rule", sa.Integer))
    op.add_column("runs", sa.Column("graded_reward", sa.Float))
    op.add_column("runs", sa.Column("may_train", sa.Boolean))
    op.add_column("trainer_logprobs", sa.Column("reward", sa.Float))
    op.add_column("trainer_logprobs", sa.Column("reward_rule", sa.Integer))
