"""Reports of clients over HTTP: the start of jobs and runs, and the end of runs.
Reports may be repeated, out of order, or missing: each updates only the columns that it contains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.trace.recorded_time import now_microseconds
from hud.trace.recording.journal import encode_json
from hud_platform.store import Store, outcomes, tables
from hud_platform.store.ingest import LASTING, note_models, to_be_indexed, upsert
from hud_platform.store.ownership import refuse_foreign


def enter_job(
    connection: sa.Connection,
    team: str,
    job_id: str,
    name: str,
    group: int,
    taskset_id: str | None,
    *,
    planned: int | None = None,
) -> None:
    """Record the start or the resumption of a job; `planned`: number of runs that it will have."""
    row = {
        "id": job_id,
        "team_id": team,
        "name": name,
        "taskset_id": taskset_id,
        "group_size": group,
        "status": "running",
        "extra": exact_json.dumps({"planned": planned} if planned else {}).decode(),
        "created_at": now_microseconds(),
    }
    refuse_foreign(connection, team, [job_id], [])
    # Without a plan, what the job's own recorder wrote there remains.
    more = ("extra",) * (planned is not None)
    upsert(connection, tables.jobs, [row], update=("name", "group_size", "taskset_id", *more))


def run_entered(store: Store, team: str, trace_id: str, columns: dict[str, Any]) -> None:
    """Record the start of a run; `columns` are those of `runs`."""
    with store.begin() as connection:
        enter_runs(connection, team, {trace_id: columns})


def enter_runs(connection: sa.Connection, team: str, runs: Mapping[str, dict[str, Any]]) -> None:
    """Record the starts of runs, in a transaction: the columns of each, by trace."""
    jobs = {
        columns_of_run["job_id"] for columns_of_run in runs.values() if columns_of_run.get("job_id")
    }
    refuse_foreign(connection, team, jobs, runs)
    alike: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for trace_id, columns_of_run in runs.items():
        alike[tuple(columns_of_run)].append({**new_run(team, trace_id), **columns_of_run})
    for columns, rows in alike.items():
        upsert(connection, tables.runs, rows, update=columns, lasting=LASTING)
        note_models(connection, rows)


def run_exited(
    store: Store,
    team: str,
    trace_id: str,
    *,
    status: str,
    reward: float | None,
    error: str | None,
    evaluation_result: dict[str, Any] | None,
    stop_reason: str | None,
    metadata: dict[str, Any] | None,
) -> None:
    """Record the end of a run.

    Of a run with a grade, a further report changes nothing; another reward becomes an outcome (`hud_platform.store.outcomes`),
    as does a reward without a grade.
    """
    evaluation = evaluation_result
    graded = evaluation is not None and not evaluation.get("isError")
    measured = reward is not None and abs(reward) <= tables.LARGEST_REWARD
    ended = {
        "status": status,
        "reward": reward if measured and graded else None,
        "reward_rule": None,
        "graded_reward": None,
        "error": error,
        "grade": _json(evaluation),
        "stop_reason": stop_reason,
        "extra": _json(metadata),
        "content": evaluation.get("content") if evaluation is not None else None,
        "ended_at": now_microseconds(),
    }
    with store.begin() as connection:
        refuse_foreign(connection, team, [], [trace_id])
        earlier = _graded_run(connection, trace_id)
        if earlier is None:
            enter_runs(connection, team, {trace_id: ended})
        # Clients report 0.0 for a run without a grade, which is no reward.
        further = reward != earlier.reward if earlier else not graded and bool(reward)
        if reward is not None and measured and further:
            outcomes.append(connection, team, trace_id, outcomes.REWARD, reward, source="exit")
        outcomes.apply_rules(connection, [trace_id])
        if status != "running":
            to_be_indexed(connection, team, [trace_id])


def _graded_run(connection: sa.Connection, trace_id: str) -> sa.Row[Any] | None:
    """Return the grade's reward of a run that has ended with a grade; None for any other."""
    runs = tables.runs
    graded = sa.case((runs.c.reward_rule.is_(None), runs.c.reward), else_=runs.c.graded_reward)
    query = sa.select(graded.label("reward")).where(
        runs.c.trace_id == trace_id, runs.c.grade.is_not(None), runs.c.status != "running"
    )
    return connection.execute(query).first()


def new_run(team: str, trace_id: str) -> dict[str, Any]:
    """Return the row of a run with unknown details."""
    return {
        "trace_id": trace_id,
        "team_id": team,
        "attempt": 0,
        "status": "running",
        "started_at": now_microseconds(),
        **dict.fromkeys(tables.RUN_COUNTS, 0),
    }


def _json(value: dict[str, Any] | None) -> bytes | None:
    return None if value is None else encode_json(value)
