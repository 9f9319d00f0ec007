"""Purposes of jobs, which were read off their names."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    purpose = sa.Column("purpose", sa.String(16), nullable=False, server_default="evaluation")
    op.add_column("jobs", purpose)
    # A colon in a statement would be a parameter; names of models have no wildcard but the underscore.
    op.execute("UPDATE jobs SET purpose = 'held_out' WHERE name LIKE '% held-out step %'")
    op.execute("UPDATE jobs SET purpose = 'subagent' WHERE name LIKE '%, called in job %'")
    op.execute(
        "UPDATE jobs SET purpose = 'training' WHERE EXISTS (SELECT 1 FROM models"
        " WHERE models.team_id = jobs.team_id AND jobs.name = models.slug || ' training')"
    )
