"""Ownership of jobs and runs: who may write them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError
from hud_platform.store import tables
from hud_platform.store.queries import in_parts

BASELINE = "human"
"""Value of `extra["baseline"]` in jobs of human baselines, which only their sessions on this server write."""


def refuse_foreign(
    connection: sa.Connection,
    team: str,
    jobs: Collection[str],
    traces: Collection[str],
    *,
    session: bool = False,
) -> None:
    """Raise `NotFoundError` where one of these is another team's or, without `session`, a human baseline's.

    `session`: the writer is a human-baseline session of this server.
    """
    for table, ids in ((tables.jobs, sorted(jobs)), (tables.runs, sorted(traces))):
        for some in in_parts(ids):
            refused = connection.execute(_refused(table, session), {"ids": some, "team": team})
            if refused.first() is not None:
                raise NotFoundError(
                    f"One of these {table.name} is not of this key's team, or is a human baseline."
                )


@cache
def _refused(table: sa.Table, session: bool) -> sa.Select[Any]:
    """Return the query for a row that must not be written. Hot path: building a statement takes longer than executing it."""
    (key,) = table.primary_key
    among = key.in_(sa.bindparam("ids", expanding=True))
    refused: sa.ColumnElement[bool] = table.c.team_id != sa.bindparam("team")
    if not session:
        jobs = tables.jobs.alias()
        job_id = key if table is tables.jobs else table.c.job_id
        of_people = jobs.c.extra["baseline"].as_string() == BASELINE
        refused |= sa.select(jobs.c.id).where(jobs.c.id == job_id, of_people).exists()
    return sa.select(key).where(among, refused).limit(1)
