"""Sources of runs: the format that a run was imported from, and its id there."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("runs", sa.Column("source", sa.String(32)))
    op.add_column("runs", sa.Column("foreign_id", sa.Text))
