"""System prompts of checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("system_prompt", sa.Text))
