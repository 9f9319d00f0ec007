"""Policies of sources: redaction, retention, training."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "source_policies",
        sa.Column("team_id", sa.String(32), primary_key=True),
        sa.Column("source", sa.String(32), primary_key=True),
        sa.Column("redact", sa.JSON, nullable=False),
        sa.Column("keep_days", sa.Integer),
        sa.Column("may_train", sa.Boolean, nullable=False),
    )
