"""Saved views of lists, read-only links to jobs, and labels of people on runs, jobs and checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "saved_views",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("team_id", "name", name="uq_saved_views_team_name"),
    )
    op.create_table(
        "shared_links",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("key_id", sa.String(32)),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_index("ix_shared_links_job_id", "shared_links", ["job_id"])
    op.create_table(
        "labels",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("team_id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subject_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("note", sa.Text),
        sa.Column("rater", sa.String(200), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("subject_id", "name", "rater", name="uq_labels_subject_name_rater"),
    )
    op.create_index("labels_of_team", "labels", ["team_id", "kind", "name", "created_at"])
