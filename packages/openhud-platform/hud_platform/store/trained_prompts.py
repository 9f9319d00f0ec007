"""Prompts on which models were trained, as digests: of training sequences whose task no record of this platform names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert
from hud_platform.store.prompt_digests import question_digests, trained_digests
from hud_platform.store.queries import in_parts

_FIRST_STEPS = 2
"""Number of the last step in which a run's prompt is looked for."""


def record_prompts(store: Store, model_id: str, digests: Collection[int]) -> None:
    """Record that a model was trained on prompts with these digests."""
    rows = [{"model_id": model_id, "digest": digest} for digest in sorted(digests)]
    if not rows:
        return
    with store.begin() as connection:
        for part in in_parts(rows):
            upsert(connection, tables.trained_prompts, [*part])


def prompts_trained_on(
    store: Store,
    team: str,
    model_ids: Collection[str],
    trace_ids: Collection[str],
    system_prompt: str | None = None,
) -> set[str]:
    """Return the slugs of those runs whose prompt one of these models was trained on, or is in the candidate's system prompt."""
    trained = tables.trained_prompts
    of_models = trained.c.model_id.in_(model_ids)
    shown = trained_digests([system_prompt]) if system_prompt else set()
    if not shown and not store.values(sa.select(trained.c.digest).where(of_models).limit(1)):
        return set()
    prompts: dict[str, set[tuple[str, ...]]] = {}
    templates: dict[str, str] = {}
    tasks = _tasks(store, team, trace_ids)
    for trace_id, messages in prompts_of(store, tasks):
        slug, template = tasks[trace_id]
        prompts.setdefault(slug, set()).add(messages)
        templates[slug] = template
    slugs = question_digests({slug: [*of] for slug, of in prompts.items()}, templates)
    matched = {slug for digest in shown & slugs.keys() for slug in slugs[digest]}
    for part in in_parts(sorted(slugs)):
        query = sa.select(trained.c.digest).where(of_models, trained.c.digest.in_(part))
        for digest in store.values(query):
            matched |= slugs[digest]
    return matched


def named_runs(store: Store, team: str, trace_ids: Collection[str]) -> set[str]:
    """Return those of these runs that were recorded here, with a task."""
    runs = tables.runs
    return {
        trace_id
        for part in in_parts([*trace_ids])
        for trace_id in store.values(
            sa.select(runs.c.trace_id).where(
                runs.c.team_id == team,
                runs.c.trace_id.in_(part),
                runs.c.slug.is_not(None),
                runs.c.task.is_not(None),
                runs.c.source.is_(None),
            )
        )
    }


def prompts_of(store: Store, trace_ids: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield runs with the texts of the messages of their user's first step."""
    steps = tables.steps
    for part in in_parts([*trace_ids]):
        query = sa.select(steps.c.trace_id, steps.c.payload).where(
            steps.c.trace_id.in_(part), steps.c.step_id <= _FIRST_STEPS
        )
        for trace_id, payload in store.rows(query):
            step = exact_json.loads(payload)
            if step.get("source") == "user" and step.get("messages"):
                of_user = (
                    message for message in step["messages"] if message.get("role", "user") == "user"
                )
                yield trace_id, tuple(filter(None, map(_text, of_user)))


def _tasks(store: Store, team: str, trace_ids: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return slug and template of the runs that have a slug."""
    runs = tables.runs
    tasks: dict[str, tuple[str, str]] = {}
    for part in in_parts([*trace_ids]):
        query = sa.select(runs.c.trace_id, runs.c.slug, runs.c.task).where(
            runs.c.team_id == team, runs.c.trace_id.in_(part), runs.c.slug.is_not(None)
        )
        for trace_id, slug, task in store.rows(query):
            data: Any = None if task is None else exact_json.loads(task)
            template = str(data.get("id")) if isinstance(data, dict) else slug
            tasks[trace_id] = slug, template
    return tasks


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, without pictures."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
