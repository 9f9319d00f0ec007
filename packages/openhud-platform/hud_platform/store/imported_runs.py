"""Runs that were imported from another system or store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from hud_platform.store import tables
from hud_platform.store.queries import in_parts


def delete_imported_turns(
    connection: sa.Connection, ended: Mapping[str, Mapping[str, Any]]
) -> None:
    """Delete steps and samples of imported runs that are imported again: their source may have been edited under their ids."""
    imported = [trace_id for trace_id, row in ended.items() if row["source"] is not None]
    for some in in_parts(imported):
        for table in (tables.steps, tables.samples):
            connection.execute(sa.delete(table).where(table.c.trace_id.in_(some)))


def recorded_here(connection: sa.Connection, ended: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the imported ones of these rows, by trace, whose run this store recorded itself: an import must not change it."""
    imported = [trace_id for trace_id, row in ended.items() if row["source"] is not None]
    runs = tables.runs
    own: set[str] = set()
    for some in in_parts(imported):
        query = sa.select(runs.c.trace_id).where(runs.c.trace_id.in_(some), runs.c.source.is_(None))
        own.update(connection.execute(query).scalars())
    return own
