"""Pictures of samples: positions, pixels and blobs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("samples", sa.Column("pictures", sa.LargeBinary))
