"""Samples that are recorded and not trained on, with the reason."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("samples", sa.Column("excluded", sa.Text))
