"""Keys that a login made: the key that confirmed it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("keys", sa.Column("parent_id", sa.String(length=32), nullable=True))
    op.create_index(op.f("ix_keys_parent_id"), "keys", ["parent_id"])
