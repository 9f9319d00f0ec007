"""Passes of programs that play runs, and their model calls."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "run_passes",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("key_id", sa.String(32)),
        sa.Column("opened_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("cost_usd", sa.Float, nullable=False),
    )
    op.create_index("ix_run_passes_trace_id", "run_passes", ["trace_id"])
    op.create_table(
        "run_calls",
        sa.Column("pass_id", sa.String(32), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("steps", sa.LargeBinary),
        sa.Column("results", sa.LargeBinary),
        sa.Column("continues", sa.LargeBinary),
        sa.Column("refusal", sa.LargeBinary),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
    )
