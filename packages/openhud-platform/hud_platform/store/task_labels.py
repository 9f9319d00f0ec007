"""Display names of recorded tasks: a template with its arguments instead of the digest in a default slug."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.environment.templates.task import task_label
from hud.environment.templates.task_identity import equal_args_of
from hud_platform.store import Store, tables
from hud_platform.store.queries import in_parts

LONGEST = 80
"""Length beyond which arguments lose their names."""
NO_TASK = "(no task)"


def task_labels(store: Store, team: str, runs: Mapping[str, str]) -> dict[str, str]:
    """Return the display name of each task. `runs`: the trace id of one run of each task, by slug."""
    recorded, by_trace = tables.runs, {trace: slug for slug, trace in runs.items()}
    labels = {slug: slug for slug in runs}
    for trace_ids in in_parts(list(by_trace)):
        query = sa.select(recorded.c.trace_id, recorded.c.task).where(
            recorded.c.team_id == team, recorded.c.trace_id.in_(trace_ids)
        )
        for trace_id, task in store.rows(query):
            slug = by_trace[trace_id]
            labels[slug] = label_of(slug, exact_json.loads(task) if task is not None else None)
    return labels


def run_label(run: Mapping[str, Any]) -> str | None:
    """Return the display name of a run's task; None for a run without a task."""
    return label_of(run["slug"], run["task"]) if run["slug"] else None


def label_of(slug: str | None, task: object) -> str:
    """Return the display name of a run's task from its slug and its recorded task; the slug for one without arguments."""
    if not isinstance(task, dict) or slug is None:
        return slug or NO_TASK
    identifier, arguments = task.get("id"), task.get("args")
    if not isinstance(identifier, str) or not isinstance(arguments, dict):
        return slug
    return task_label(slug, identifier, arguments, equal_args_of(task), LONGEST)
