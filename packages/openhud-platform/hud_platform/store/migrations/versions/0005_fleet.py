"""Nodes of the fleet, attempts without a result, requirements of rollouts, and digests of packed builds."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("rollouts", sa.Column("needs", sa.Text(), nullable=True))
    for name in ("faults", "preemptions"):
        counted = sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        op.add_column("rollouts", counted)
    # One count stood for both kinds.
    op.execute(
        "UPDATE rollouts SET faults = CASE status WHEN 'queued' THEN attempt ELSE attempt - 1 END"
        " WHERE attempt > 0 AND ended_at IS NULL"
    )
    op.create_index("rollouts_needs", "rollouts", ["status", "needs"])
    op.add_column("builds", sa.Column("digest", sa.String(length=64), nullable=True))
    op.create_table(
        "lost_attempts",
        sa.Column("trace_id", sa.String(length=32), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "fleet_nodes",
        sa.Column("worker", sa.String(length=200), primary_key=True),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("team_id", sa.String(length=32), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("capacity", sa.JSON(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("load", sa.JSON(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("joined_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("left_at", sa.BigInteger(), nullable=True),
        sa.UniqueConstraint("id", name="uq_fleet_nodes_id"),
    )
    op.create_index("ix_fleet_nodes_team_id", "fleet_nodes", ["team_id"])
