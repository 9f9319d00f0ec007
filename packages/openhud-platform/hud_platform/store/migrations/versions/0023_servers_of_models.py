"""Servers that sample a model have a kind and settings, and candidates of gated training are marked as such."""

import re
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

MODELS = sa.table(
    "models",
    sa.column("id", sa.String),
    sa.column("slug", sa.String),
    sa.column("base_model_id", sa.String),
    sa.column("config", sa.JSON),
)


def upgrade() -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.select(MODELS)).all()
    slugs = {row.id: row.slug for row in rows}
    for row in rows:
        config = dict(row.config or {})
        config["servers"] = _with_kind(config.pop("vllm", None))
        base = slugs.get(row.base_model_id)
        if base is not None:
            name = rf"{re.escape(base)}-candidate-[0-9]+"
            config["candidate"] = re.fullmatch(name, row.slug) is not None
        changed = sa.update(MODELS).where(MODELS.c.id == row.id).values(config=config)
        connection.execute(changed)


def _with_kind(servers: dict[str, Any] | None) -> dict[str, Any] | None:
    if servers is None:
        return None
    settings = dict(servers)
    urls, key_env = settings.pop("urls"), settings.pop("key_env", None)
    return {"kind": "vllm", "urls": urls, "key_env": key_env, "settings": settings}
