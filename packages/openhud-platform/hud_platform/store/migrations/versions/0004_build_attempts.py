"""The attempts of a build in a column of their own, as of a rollout."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_BUILDS = sa.table(
    "builds", sa.column("id"), sa.column("options", sa.JSON), sa.column("attempt", sa.Integer)
)


def upgrade() -> None:
    column = sa.Column("attempt", sa.Integer(), nullable=False, server_default="0")
    op.add_column("builds", column)
    connection = op.get_bind()
    for row in connection.execute(sa.select(_BUILDS.c.id, _BUILDS.c.options)).all():
        attempt = int((row.options or {}).get("attempt", 0))
        build = sa.update(_BUILDS).where(_BUILDS.c.id == row.id)
        connection.execute(build.values(attempt=attempt))
