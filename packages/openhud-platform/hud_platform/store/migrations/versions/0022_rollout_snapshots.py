"""Snapshots of rollouts, from which their next attempts go on."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.create_table(
        "rollout_snapshots",
        sa.Column("trace_id", sa.String(32), primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("blob", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("taken", sa.Integer, nullable=False),
        sa.Column("taken_at", sa.BigInteger, nullable=False),
    )
