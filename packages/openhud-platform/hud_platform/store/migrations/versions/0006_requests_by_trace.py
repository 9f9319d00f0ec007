"""Requests by the run that they were for: what is evidence of a promotion is looked up there."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_index("requests_of_trace", "requests", ["trace_id"])
