"""Numbers of tool calls of runs, which were in their `extra` alone."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

AT_ONCE = 1_000


def upgrade() -> None:
    for name in ("tool_calls", "tool_errors", "tool_time_outs"):
        op.add_column("runs", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    connection = op.get_bind()
    runs = sa.table("runs", *map(sa.column, ("trace_id", "extra")))
    update = sa.text(
        "UPDATE runs SET tool_calls = :calls, tool_errors = :errors, tool_time_outs = :late"
        " WHERE trace_id = :trace"
    )
    query = sa.select(runs.c.trace_id, runs.c.extra).where(runs.c.extra.is_not(None))
    last = ""
    while rows := connection.execute(
        query.where(runs.c.trace_id > last).order_by(runs.c.trace_id).limit(AT_ONCE)
    ).all():
        last = rows[-1].trace_id
        counted = [
            {"trace": row.trace_id, **counts}
            for row in rows
            if (counts := _counts(bytes(row.extra))) is not None
        ]
        if counted:
            connection.execute(update, counted)
    op.drop_index("runs_of_job", "runs")
    op.create_index(
        "runs_of_job",
        "runs",
        [
            *("job_id", "group_id", "status", "reward", "failure_kind"),
            *("prompt_tokens", "completion_tokens"),
            *("tool_calls", "tool_errors", "tool_time_outs"),
            *("cost_usd", "started_at", "ended_at"),
        ],
    )


def _counts(extra: bytes) -> dict[str, int] | None:
    if b'"tool_calls"' not in extra:
        return None
    counts = json.loads(extra).get("tool_calls")
    if not isinstance(counts, dict):
        return None
    values = [counts.get(name, 0) for name in ("calls", "error", "time-out")]
    if any(type(value) is not int or not 0 <= value < 2**31 for value in values):
        return None
    return dict(zip(("calls", "errors", "late"), values, strict=True))
