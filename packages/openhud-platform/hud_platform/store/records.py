"""Recorded jobs, runs and traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import NotFoundError, UsageError
from hud.learning.wire_types import TrajectorySample
from hud.trace import TOOL_CALLS
from hud.trace.ids import trace_id_of
from hud.trace.sampled.pictures import Picture
from hud.trace.sampled.token_columns import unpack_ids, unpack_logprobs
from hud_platform.store import Store, tables
from hud_platform.store.attachments import attach, has_attachments
from hud_platform.store.job_status import INTERRUPTED, outcome, statuses
from hud_platform.store.job_sums import JobSums, sums_of
from hud_platform.store.job_titles import titles_of
from hud_platform.store.queries import Query, as_dict, begins_with, in_parts
from hud_platform.store.run_calls import unrecorded_steps

_JOB = ("id", "team_id", "name", "purpose", "taskset_id", "group_size")
_SUMS = ("runs", "graded", "failed", "reward", "low", "high", "completion_tokens")
"""Sums over a job's runs that its record shows."""
MOST_BYTES = 256 << 20
"""Size of the largest trace, or page of spans, that is read whole: steps with their attachments, and token ids."""
PART_BYTES = 16 << 20
"""Stored size of the traces that are in memory together."""
_TOKENS = ("prompt", "output", "logprobs")
_ID_BYTES = 8
"""Memory of a token id in a prompt: prompts of one conversation share their ids."""


def jobs_page(store: Store, team: str, limit: int, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return a page of jobs, newest first, with the sums over their runs, and the number of jobs."""
    jobs = tables.jobs
    theirs = sa.select(jobs).where(jobs.c.team_id == team)
    newest = theirs.order_by(jobs.c.created_at.desc(), jobs.c.id)
    rows, total = store.page(newest, limit, offset)
    with store.read() as connection:
        return _jobs(connection, team, rows), total


def find_job(store: Store, team: str, reference: str) -> dict[str, Any]:
    """Return the job with this id, or with a unique start of it."""
    jobs = tables.jobs
    query = sa.select(jobs).where(jobs.c.team_id == team, begins_with(jobs.c.id, reference))
    with store.read() as connection:
        row = _only(connection.execute(query.limit(2)).all(), "job", reference)
        return _jobs(connection, team, [row])[0]


def runs_page(
    store: Store, job: dict[str, Any], limit: int | None, offset: int
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of the runs of `job` (see `find_job`) in the order of their starts, and their number."""
    runs = tables.runs
    of_job = sa.select(runs).where(runs.c.job_id == job["id"], runs.c.team_id == job["team_id"])
    rows, total = store.page(of_job.order_by(runs.c.started_at, runs.c.trace_id), limit, offset)
    return [_run(row, job["status"] != "running") for row in rows], total


def find_run(store: Store, team: str, reference: str) -> dict[str, Any]:
    """Return the run with this trace id, a unique start of it, or its client's own name for it."""
    runs = tables.runs
    named = sa.or_(
        begins_with(runs.c.trace_id, reference), runs.c.trace_id == trace_id_of(reference)
    )
    rows = store.rows(sa.select(runs).where(runs.c.team_id == team, named).limit(2))
    row = _only(rows, "trace", reference)
    pending = row.status == "running" and row.job_id is not None
    return _run(row, pending and _is_over(store, team, row.job_id))


def groups_of(store: Store, team: str, references: Sequence[str]) -> dict[str, str]:
    """Return the group ids of the runs that have one, by trace id."""
    runs, ids = tables.runs, [trace_id_of(reference) for reference in references]
    group_ids: dict[str, str] = {}
    with store.read() as connection:
        for some in in_parts(ids):
            query = sa.select(runs.c.trace_id, runs.c.group_id).where(
                runs.c.trace_id.in_(some),
                runs.c.team_id == team,
                runs.c.group_id.is_not(None),
            )
            group_ids |= {row.trace_id: row.group_id for row in connection.execute(query)}
    return group_ids


def samples_of(
    store: Store, team: str, references: Sequence[str]
) -> dict[str, list[TrajectorySample]]:
    """Return the samples of the runs that have any, by trace id, in the order of turns."""
    samples, runs = tables.samples, tables.runs
    ids = [trace_id_of(reference) for reference in references]
    by_trace: dict[str, list[TrajectorySample]] = {}
    with store.read() as connection:
        for some in in_parts(ids):
            rows = connection.execute(
                sa.select(samples)
                .join(runs, runs.c.trace_id == samples.c.trace_id)
                .where(runs.c.trace_id.in_(some), runs.c.team_id == team)
                .order_by(samples.c.trace_id, samples.c.step_id)
            )
            for trace_id, turns in groupby(rows, key=lambda row: str(row.trace_id)):
                by_trace[trace_id] = [
                    # Constructed without validation: the lists come from the columns and are long.
                    TrajectorySample.model_construct(
                        **{**sample, "pictures": _with_files(store, team, sample["pictures"])}
                    )
                    for _, sample in _whole_samples(turns)
                    if sample["output_token_ids"]
                ]
    return by_trace


def trace_steps(store: Store, team: str, trace_id: str) -> list[dict[str, Any]]:
    """Return the steps of a trace in order, as `hud.step.v1` payloads, each with its sample.

    Those of model calls that the run's process has not recorded yet come last.
    """
    return next(steps_of_traces(store, team, [trace_id]))


def steps_of_traces(
    store: Store, team: str, trace_ids: Sequence[str]
) -> Iterator[list[dict[str, Any]]]:
    """Yield the steps of each trace: see `trace_steps`. At most `IDS_AT_ONCE` traces.

    Raises `UsageError` for a trace that is larger than `MOST_BYTES`.
    """
    passes = tables.run_passes
    of_passes = sa.select(passes.c.trace_id).where(passes.c.trace_id.in_(trace_ids))
    passed = set(store.values(of_passes))
    for part in _small_parts(store, trace_ids):
        payloads, drawn = (
            _by_trace(store, table, part) for table in (tables.steps, tables.samples)
        )
        for trace_id in part:
            by_step = dict(_whole_samples(drawn.pop(trace_id, ())))
            recorded = []
            size = 0
            for row in payloads.pop(trace_id, ()):
                step: dict[str, Any] = exact_json.loads(row.payload)
                size += len(row.payload)
                if has_attachments(row.payload):
                    size += attach(store.blobs, team, step)
                    if size > MOST_BYTES:
                        raise _too_large(trace_id)
                if row.step_id in by_step:
                    sample = _without_blobs(by_step[row.step_id])
                    step["sample"] = {**step.get("sample", {}), **sample}
                recorded.append(step)
            unrecorded = unrecorded_steps(store, trace_id, recorded) if trace_id in passed else []
            yield [*recorded, *unrecorded]


def _small_parts(store: Store, trace_ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield the traces in order, some whose rows have at most `PART_BYTES` together, or one. Raises as `steps_of_traces`."""
    sizes: Counter[str] = Counter()
    for table, names in ((tables.steps, ("payload",)), (tables.samples, _TOKENS)):
        length = sum((sa.func.length(table.c[name]) for name in names), sa.literal(0))
        query = sa.select(table.c.trace_id, sa.func.sum(length)).group_by(table.c.trace_id)
        for trace_id, size in store.rows(query.where(table.c.trace_id.in_(trace_ids))):
            sizes[trace_id] += int(size)
    part: list[str] = []
    together = 0
    for trace_id in trace_ids:
        if part and together + sizes[trace_id] > PART_BYTES:
            yield part
            part, together = [], 0
        if sizes[trace_id] > MOST_BYTES:
            raise _too_large(trace_id)
        part.append(trace_id)
        together += sizes[trace_id]
    if part:
        yield part


def _too_large(trace_id: str) -> UsageError:
    return UsageError(
        f"The trace {trace_id} has more than {MOST_BYTES >> 20} MiB with its attachments and the token ids of its prompts, and is "
        f"not read whole. Its steps one after the other: GET /trace/{trace_id}/raw.json"
    )


def _by_trace(store: Store, table: sa.Table, trace_ids: Sequence[str]) -> dict[str, list[Any]]:
    """Return the rows of each trace in the order of its steps."""
    of_traces = sa.select(table).where(table.c.trace_id.in_(trace_ids))
    rows = store.rows(of_traces.order_by(table.c.trace_id, table.c.step_id))
    return {key: list(some) for key, some in groupby(rows, key=lambda row: str(row.trace_id))}


def steps_in_order(trace_id: str) -> Query:
    """Return the query for the number and the payload of each step of a trace."""
    steps = tables.steps
    query = sa.select(steps.c.step_id, steps.c.payload).where(steps.c.trace_id == trace_id)
    return query.order_by(steps.c.step_id)


def recorded_runs(
    store: Store, team: str, trace_ids: Sequence[str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each run and its trace (see `whole_trace`), in the order of `trace_ids`, at most `IDS_AT_ONCE`.

    Raises `NotFoundError`, before the first, for one that is not recorded.
    """
    runs, ids = tables.runs, [trace_id_of(reference) for reference in trace_ids]
    rows = store.rows(sa.select(runs).where(runs.c.team_id == team, runs.c.trace_id.in_(ids)))
    by_id = {row.trace_id: row for row in rows}
    chosen = [_only([by_id[key]] if key in by_id else [], "trace", key) for key in ids]
    pending = {row.job_id for row in rows if row.status == "running" and row.job_id is not None}
    over = {job_id for job_id in pending if _is_over(store, team, job_id)}
    for row, steps in zip(chosen, steps_of_traces(store, team, ids), strict=True):
        run = _run(row, row.job_id in over)
        yield run, _trace(run, steps)


def whole_trace(store: Store, run: dict[str, Any]) -> dict[str, Any]:
    """Return the trace of a run (see `find_run`) in the form of `hud.trace.parse_trace`, every step with its tokens."""
    return _trace(run, trace_steps(store, run["team_id"], run["trace_id"]))


def _trace(run: dict[str, Any], steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "trace_id": run["trace_id"],
        "steps": steps,
        "status": run["status"] if run["status"] != "running" else "cancelled",
        "stop_reason": run["stop_reason"],
        "content": run["content"],
        # Counts of tool calls are the recorder's addition.
        "extra": {key: value for key, value in (run["extra"] or {}).items() if key != TOOL_CALLS},
    }


def trace_spans(
    store: Store, team: str, trace_id: str, limit: int, offset: int
) -> tuple[list[dict[str, Any]], int]:
    """Return the spans of a trace that are not steps, as received, in the order of their starts; and their number.

    Raises `UsageError` for a page of several spans that is too large.
    """
    spans = tables.spans
    query = sa.select(spans.c.span).where(spans.c.trace_id == trace_id)
    rows, total = store.page(query.order_by(spans.c.started_at, spans.c.span_id), limit, offset)
    items, size = [], 0
    for (payload,) in rows:
        items.append(exact_json.loads(payload))
        size += len(payload)
        if has_attachments(payload):
            size += attach(store.blobs, team, items[-1])
        if size > MOST_BYTES and len(items) > 1:
            raise UsageError(
                f"These spans have more than {MOST_BYTES >> 20} MiB together; ask for fewer than {len(items)} at a time (limit)."
            )
    return items, total


def _whole_samples(rows: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the samples of steps with known prompts, each with its full prompt. Raises `UsageError` where they have more than `MOST_BYTES` together."""
    so_far: dict[int, tuple[list[int], list[dict[str, Any]]]] = {}
    size = 0
    for row in rows:
        prompt = unpack_ids(row.prompt)
        pictures = [] if row.pictures is None else exact_json.loads(row.pictures)
        if row.extends is not None:
            if row.extends not in so_far:
                continue  # The step that it extends is not recorded: its prompt is not known.
            prompt = so_far[row.extends][0] + prompt
            pictures = so_far[row.extends][1] + pictures
        output = unpack_ids(row.output)
        size += _ID_BYTES * (len(prompt) + len(output))
        if size > MOST_BYTES:
            raise _too_large(row.trace_id)
        so_far[row.step_id] = prompt + output, pictures
        yield (
            row.step_id,
            {
                "prompt_token_ids": prompt,
                "output_token_ids": output,
                "output_logprobs": unpack_logprobs(row.logprobs),
                "checkpoint": row.checkpoint,
                "swaps": [] if row.swaps is None else exact_json.loads(row.swaps),
                "temperature": row.temperature,
                "excluded": row.excluded,
                "pictures": pictures,
            },
        )


def _without_blobs(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample whose pictures do not name their blobs."""
    pictures = [
        {name: value for name, value in picture.items() if name != "blob"}
        for picture in sample["pictures"]
    ]
    others = {name: value for name, value in sample.items() if name != "pictures"}
    return {**others, "pictures": pictures} if pictures else others


def _with_files(store: Store, team: str, pictures: list[dict[str, Any]]) -> list[Picture]:
    """Return pictures with their files. Raises `UsageError` for one whose file is gone or damaged."""
    shown: list[Picture] = []
    for picture in pictures:
        name = picture["blob"]
        try:
            if not name.startswith(f"{team}/"):
                raise NotFoundError(name)
            data = store.blobs.get(name).decode("ascii")
        except (NotFoundError, UnicodeDecodeError):
            raise UsageError(
                f"The file of a recorded picture (SHA-256 {picture['sha256'][:16]}…) is no longer stored whole; leave its run out."
            ) from None
        values = {key: value for key, value in picture.items() if key != "blob"}
        shown.append(Picture(**values, data=data))
    return shown


def taskset_names(connection: sa.Connection, team: str, jobs: Sequence[Any]) -> dict[str, str]:
    """Return the names of the tasksets of rows of `jobs`, by id."""
    sets, wanted = tables.tasksets, {job.taskset_id for job in jobs} - {None}
    query = sa.select(sets.c.id, sets.c.name).where(sets.c.team_id == team, sets.c.id.in_(wanted))
    return {row.id: row.name for row in connection.execute(query)} if wanted else {}


def registered_models(store: Store, team: str, slugs: Collection[str]) -> list[str]:
    """Return those of these names that are models of the platform; others are agents of providers, or scripts."""
    models = tables.models
    query = sa.select(models.c.slug).where(models.c.team_id == team, models.c.slug.in_(slugs))
    return sorted(store.values(query)) if slugs else []


def _jobs(connection: sa.Connection, team: str, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return jobs in the form of the routes, from rows of the team's."""
    sums = sums_of(connection, [row.id for row in rows])
    states = statuses(connection, rows)
    names = taskset_names(connection, team, rows)
    titles = titles_of(connection, {row.id: row.name for row in rows})
    return [
        {**_job(row, sums[row.id], states[row.id], names), "title": titles[row.id]} for row in rows
    ]


def _job(row: Any, sums: JobSums, status: str, tasksets: dict[str, str]) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _JOB},
        "taskset_name": tasksets.get(row.taskset_id, row.name),
        "benchmark": row.extra.get("benchmark"),
        "graded_from": row.extra.get("graded_from"),
        "concurrency": row.extra.get("concurrency"),
        "status": outcome(status, sums.runs, sums.failed),
        "created_at": row.created_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        **{name: getattr(sums, name) for name in _SUMS},
        **sums.progress(status, row.extra.get("planned")),
    }


def _is_over(store: Store, team: str, job_id: str) -> bool:
    try:
        return bool(find_job(store, team, job_id)["status"] != "running")
    except NotFoundError:
        return False


def _run(row: Any, job_is_over: bool) -> dict[str, Any]:
    values = as_dict(row)
    for name in ("task", "grade", "extra"):
        values[name] = exact_json.loads(values[name]) if values[name] is not None else None
    for name in ("started_at", "ended_at"):
        values[name] = values[name].isoformat() if values[name] is not None else None
    if values["status"] == "running" and job_is_over:
        values |= INTERRUPTED
    return {"id": values["trace_id"], "start_time": values["started_at"], **values}


def _only(rows: Any, what: str, reference: str) -> Any:
    if not rows:
        raise NotFoundError(
            f"There is no {what} {reference!r}; `hud jobs` lists what was recorded."
        )
    if len(rows) > 1:
        raise NotFoundError(f"Several {what}s begin with {reference!r}; give more of the id.")
    return rows[0]
