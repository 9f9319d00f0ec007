"""Digests of the prompts that models were trained on without a recorded task."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "trained_prompts",
        sa.Column("model_id", sa.String(32), primary_key=True),
        sa.Column("digest", sa.BigInteger, primary_key=True, autoincrement=False),
    )
