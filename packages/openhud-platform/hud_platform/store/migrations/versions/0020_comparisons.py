"""Comparisons of two runs by people."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "comparisons",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("left_id", sa.String(32), nullable=False),
        sa.Column("right_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("choice", sa.String(8), nullable=False),
        sa.Column("shuffled", sa.Boolean, nullable=False),
        sa.Column("rater", sa.String(200), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("comparisons_of_team", "comparisons", ["team_id", "name", "created_at"])
