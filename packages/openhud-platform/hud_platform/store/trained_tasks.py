"""Tasks on which models were trained, from the recorded rollouts of their training runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.environment.templates.task_identity import TaskIdentity, TaskIndex
from hud.errors import NotFoundError
from hud_platform.store import Store, records, tables
from hud_platform.store.prompt_digests import lines_of
from hud_platform.store.queries import in_parts
from hud_platform.store.trained_prompts import prompts_of

_Condition = sa.ColumnElement[bool]


def trained_on(
    store: Store,
    team: str,
    models: Collection[str],
    trace_ids: Collection[str],
    *,
    model_ids: Collection[str] = (),
) -> set[str]:
    """Return the slugs of those runs whose task one of these models was trained on: in a training run, which played it or
    learned from a recorded job, or in a training client's passes over recorded runs. `model_ids` are those of deleted models.

    Tasks are equal if environment, template and a form of their arguments are, whatever their slugs, or prompt, template and
    arguments of an environment of another name; where a run records no task, its slug decides.
    """
    jobs, noted = tables.jobs, tables.job_models
    rollouts = (
        sa.select(jobs.c.id)
        .join(noted, noted.c.job_id == jobs.c.id)
        .where(jobs.c.team_id == team, jobs.c.purpose == "training", noted.c.model.in_(models))
    )
    training = {*store.values(rollouts), *_supervised_jobs(store, team, models)}
    learned = _learned(team, models, model_ids)
    of_training: list[_Condition] = [
        tables.runs.c.job_id.in_(part) for part in in_parts(sorted(training))
    ]
    of_training.append(sa.and_(tables.runs.c.team_id == team, tables.runs.c.trace_id.in_(learned)))
    of_jobs = [tables.runs.c.trace_id.in_(part) for part in in_parts([*trace_ids])]
    trained = _tasks(store, of_training)
    if not trained:
        return set()
    played = _tasks(store, of_jobs)
    index = TaskIndex(task for tasks in trained.values() for task in tasks if task is not None)
    unnamed = {slug for slug, tasks in trained.items() if None in tasks}
    same = {
        slug
        for slug, tasks in played.items()
        if slug in unnamed
        or any(slug in trained if task is None else task in index for task in tasks)
    }
    return same | _renamed(store, of_training, of_jobs)


def _renamed(store: Store, trained: Sequence[_Condition], played: Sequence[_Condition]) -> set[str]:
    """Return the slugs of played runs whose template, arguments and prompt are those of a trained one of another environment."""
    copies, others = _without_environment(store, played), _without_environment(store, trained)
    index = TaskIndex(task for task, _ in others.values())
    copies = {run: copy for run, copy in copies.items() if copy[0] in index}
    if not copies:
        return set()
    index = TaskIndex(task for task, _ in copies.values())
    runs = [run for run, (task, _) in others.items() if task in index]
    prompts = {_compared(messages) for _, messages in prompts_of(store, runs)}
    return {
        copies[run][1]
        for run, messages in prompts_of(store, copies)
        if _compared(messages) in prompts
    }


def _without_environment(
    store: Store, conditions: Sequence[_Condition]
) -> dict[str, tuple[TaskIdentity, str]]:
    """Return one run of each task, with the task under no environment's name and the slug."""
    runs = tables.runs
    named: dict[str, tuple[TaskIdentity, str]] = {}
    for condition in conditions:
        query = sa.select(sa.func.min(runs.c.trace_id), runs.c.slug, runs.c.task)
        query = query.where(condition, runs.c.slug.is_not(None), runs.c.task.is_not(None))
        for trace_id, slug, text in store.rows(query.group_by(runs.c.slug, runs.c.task)):
            task = exact_json.loads(text)
            named[trace_id] = TaskIdentity.recorded({**task, "env": ""}), slug
    return named


def _compared(messages: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(map(lines_of, messages))


def _learned(team: str, models: Collection[str], model_ids: Collection[str]) -> sa.Select[Any]:
    """Return the query of the runs over which a pass of one of these models went."""
    passes, theirs = tables.trained_runs, tables.models
    ids = sa.select(theirs.c.id).where(theirs.c.team_id == team, theirs.c.slug.in_(models))
    return sa.select(passes.c.trace_id).where(
        sa.or_(passes.c.model_id.in_(ids), passes.c.model_id.in_(model_ids))
    )


def _supervised_jobs(store: Store, team: str, models: Collection[str]) -> set[str]:
    """Return the ids of the jobs from which supervised training runs of these models learned (`hud train --from`)."""
    runs, theirs = tables.training_runs, tables.models
    query = (
        sa.select(runs.c.config)
        .join(theirs, theirs.c.id == runs.c.model_id)
        .where(theirs.c.team_id == team, theirs.c.slug.in_(models))
    )
    jobs = set()
    for reference in {job for config in store.values(query) for job in config.get("jobs", ())}:
        # A job that is deleted has no runs to compare with.
        with suppress(NotFoundError):
            jobs.add(records.find_job(store, team, reference)["id"])
    return jobs


def _tasks(store: Store, conditions: Sequence[_Condition]) -> dict[str, list[TaskIdentity | None]]:
    """Return the tasks of each slug, of all runs: a recorder may give one slug to several tasks.

    None for a run that records no task.
    """
    runs = tables.runs
    by_slug: dict[str, list[TaskIdentity | None]] = {}
    for condition in conditions:
        query = sa.select(runs.c.slug, runs.c.task).where(condition, runs.c.slug.is_not(None))
        for slug, task in store.rows(query.distinct()):
            data = None if task is None else exact_json.loads(task)
            by_slug.setdefault(slug, []).append(TaskIdentity.recorded(data) if data else None)
    return by_slug
