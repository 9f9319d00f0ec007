"""Runs whose turns this platform sampled: its own record of requests, not the recorder's word."""

from __future__ import annotations

import sqlalchemy as sa

from hud_platform.store import tables


def is_served() -> sa.ColumnElement[bool]:
    """Return the condition that the weights named by a row of `runs` sampled tokens for it on this platform."""
    requests, runs = tables.requests, tables.runs
    return (
        sa.select(requests.c.id)
        .where(
            requests.c.trace_id == runs.c.trace_id,
            requests.c.team_id == runs.c.team_id,
            requests.c.model == runs.c.model,
            sa.func.coalesce(requests.c.checkpoint, "") == sa.func.coalesce(runs.c.checkpoint, ""),
            requests.c.completion_tokens > 0,
        )
        .exists()
    )
