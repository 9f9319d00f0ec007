"""Models and checkpoints name no vendor: a model has a backend with settings, a checkpoint the names that clients gave it."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

MODELS = sa.table("models", sa.column("id", sa.String), sa.column("config", sa.JSON))
CHECKPOINTS = sa.table("checkpoints", sa.column("id", sa.String), sa.column("metrics", sa.JSON))


def upgrade() -> None:
    connection = op.get_bind()
    for row in connection.execute(sa.select(MODELS)).all():
        config = dict(row.config or {})
        settings = config.pop("tinker", None)
        if settings is not None:
            config["backend"] = {"name": "tinker", "settings": settings}
        _set(connection, MODELS, row.id, {"config": config})
    # Metrics are most of this database: those of few checkpoints are read.
    named = CHECKPOINTS.c.metrics["tinker"].as_string().is_not(None)
    ids = connection.scalars(sa.select(CHECKPOINTS.c.id).where(named)).all()
    for checkpoint in ids:
        query = sa.select(CHECKPOINTS.c.metrics).where(CHECKPOINTS.c.id == checkpoint)
        metrics = dict(connection.scalars(query).one())
        metrics["client_names"] = metrics.pop("tinker")
        _set(connection, CHECKPOINTS, checkpoint, {"metrics": metrics})


def _set(
    connection: sa.Connection, table: sa.TableClause, identifier: str, values: dict[str, Any]
) -> None:
    connection.execute(sa.update(table).where(table.c.id == identifier).values(**values))
