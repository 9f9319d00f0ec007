"""Content of a trace's pages, read from the store: plain data for templates and JSON twins."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hud.errors import NotFoundError
from hud.trace.recorded_time import seconds_between
from hud_dashboard.queries import trace_windows
from hud_dashboard.queries.trace_windows import WINDOW_STEPS, Window
from hud_dashboard.trace.grades import grade_of
from hud_dashboard.trace.steps import Setting, arguments_of, shown_steps
from hud_dashboard.trace.tokens import (
    Vocabularies,
    advantage_of,
    gap_sentence,
    shown_tokens,
)
from hud_dashboard.trace.values import dict_of, moment_of
from hud_platform.models.registry import Registry
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store, records, trainer_logprobs
from hud_platform.store.task_labels import run_label

COLOURS = ("logprob", "advantage", "gap")
"""Quantities for colouring tokens."""

View = dict[str, Any]


def setting_of(run: dict[str, Any]) -> Setting:
    """Return the setting in which a run's steps are shown."""
    return Setting(run["trace_id"], began=moment_of(run["started_at"]), model=run["model"])


def shown_window(
    registry: Registry, run: dict[str, Any], window: Window, colour: str | None = None
) -> list[View]:
    """Return the steps of a window, with their tokens if a colour is given."""
    store, trace_id = registry.store, run["trace_id"]
    steps = trace_windows.steps_between(store, trace_id, window.first, window.last)
    state = trace_windows.state_before(store, trace_id, window.first)
    views = shown_steps(setting_of(run), steps, state)
    for (step_id, _), view in zip(steps, views, strict=True):
        view["id"] = step_id
    if colour in COLOURS:
        _add_tokens(registry, run, window, views, colour)
    return views


def shown_nested(
    run: dict[str, Any], payload: dict[str, Any], number: str, offset: int
) -> tuple[list[View], int]:
    """Return a page of the steps of the run nested in a step, and their number."""
    steps = _nested_steps(payload)
    setting = Setting(
        run["trace_id"],
        began=moment_of(run["started_at"]),
        prefix=f"{number}.",
        model=dict_of(payload.get("extra")).get("model"),
        images=number.partition(".")[0],
    )
    return shown_steps(setting, steps[offset : offset + WINDOW_STEPS]), len(steps)


def find_numbered(store: Store, run: dict[str, Any], number: str) -> dict[str, Any]:
    """Return the step with a number such as `12`, or `12.3` for the third step of the run nested in step 12."""
    first, *inner = number.split(".")
    missing = NotFoundError(f"There is no step {number} in the trace {run['trace_id']}.")
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in (first, *inner)):
        raise missing
    step = trace_windows.find_step(store, run["trace_id"], int(first))
    for part in inner:
        matching = [nested for identifier, nested in _nested_steps(step) if identifier == int(part)]
        if not matching:
            raise missing
        step = matching[0]
    return step


def head_of(store: Store, run: dict[str, Any]) -> View:
    """Return the head of a run's page: the run, its job, its grade, and links."""
    extra = run["extra"] or {}
    task = run["task"] if isinstance(run["task"], dict) else {}
    siblings = trace_windows.siblings(store, run)
    _, spans = records.trace_spans(store, run["team_id"], run["trace_id"], 0, 0)
    return {
        "run": plain_run(run),
        "registered": records.registered_models(store, run["team_id"], {run["model"]} - {None}),
        "job": trace_windows.job_of(store, run),
        "grade": grade_of(run["grade"]),
        "task": {
            "env": task.get("env"),
            "id": task.get("id"),
            "arguments": arguments_of(task["args"]) if task.get("args") else None,
        },
        "seconds": seconds_of(run),
        "spans": spans,
        "siblings": siblings,
        "rival": _rival(run, siblings),
        "neighbours": trace_windows.neighbours(store, run),
        "attempts": _attempts(store, run),
        "parent": _identifier(extra.get("parent_trace_id")),
        "retried_as": _identifier(extra.get("retried_as")),
        "has_tokens": trace_windows.has_samples(store, run["trace_id"]),
        "revision": revision_of(store, run["team_id"], run["trace_id"])[0],
    }


def plain_run(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run as plain data, without its team, and without its grade, which has its own view."""
    # SQLAlchemy's column names are a subclass of str, which `exact_json` refuses.
    plain = {str(name): run[name] for name in run if name not in ("team_id", "grade")}
    return {**plain, "label": run_label(run)}


def seconds_of(run: dict[str, Any]) -> float | None:
    """Return the duration of a run; None if it has not ended."""
    return seconds_between(moment_of(run["started_at"]), moment_of(run["ended_at"]))


def revision_of(store: Store, team: str, trace_id: str) -> tuple[str, bool]:
    """Return the revision of a trace's page, and whether the run is over."""
    run = records.find_run(store, team, trace_id)
    last, count = trace_windows.last_step(store, trace_id)
    tried = Rollouts(store).tried(team, trace_id)
    seen = (last, count, run["attempt"], tried, run["status"], run["reward"])
    return ".".join(map(str, seen)), run["status"] != "running"


def _attempts(store: Store, run: dict[str, Any]) -> list[View]:
    """Return the attempts at a run that the platform plays; none for any other run."""
    with suppress(NotFoundError):
        record = Rollouts(store).record(run["team_id"], run["trace_id"])
        return list(record["attempts"])
    return []


def _add_tokens(
    registry: Registry, run: dict[str, Any], window: Window, views: list[View], colour: str
) -> None:
    store = registry.store
    drawn = trace_windows.drawn_between(store, run["trace_id"], window.first, window.last)
    if not drawn:
        return
    advantage = None
    if colour == "advantage":
        advantage = advantage_of(trace_windows.group_rewards(store, run), run["trace_id"])
    computed: dict[int, list[float]] = {}
    if colour == "gap":
        computed = trainer_logprobs.logprobs_between(
            store, run["trace_id"], window.first, window.last
        )
    vocabularies = Vocabularies(registry, run["model"])
    for view in views:
        sampled = drawn.get(view["id"])
        if sampled is not None:
            vocabulary = vocabularies.of(sampled.checkpoint)
            trainer = computed.get(view["id"], ())
            view["tokens"] = shown_tokens(sampled, vocabulary, colour, advantage, trainer)


def colour_notice(registry: Registry, run: dict[str, Any], colour: str | None) -> str | None:
    """Return a notice about the colours of a run's tokens, or None."""
    if colour == "advantage":
        group = trace_windows.group_rewards(registry.store, run)
        sentence: str = advantage_of(group, run["trace_id"])["sentence"]
        return sentence
    if colour == "gap":
        gaps = trainer_logprobs.gaps_of(registry.store, run["trace_id"])
        return gap_sentence(registry, gaps)
    return None


def _rival(run: dict[str, Any], siblings: list[dict[str, Any]]) -> str | None:
    """Return the run of the task for comparison with this one: the one with the most different reward."""
    reward = run["reward"] or 0.0
    others = [
        (abs(sibling["reward"] - reward), sibling["trace_id"])
        for sibling in siblings
        if sibling["reward"] is not None and sibling["trace_id"] != run["trace_id"]
    ]
    return max(others)[1] if others else None


def _nested_steps(payload: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the steps of the run nested in a step, with their ids; steps without ids are counted from 1."""
    nested = dict_of(payload.get("subagent")).get("steps")
    steps = []
    for place, step in enumerate(nested if isinstance(nested, list) else [], 1):
        if isinstance(step, dict):
            number = step.get("step_id")
            steps.append((number if isinstance(number, int) and number > 0 else place, step))
    return steps


def _identifier(value: Any) -> str | None:
    return value if isinstance(value, str) and value.isalnum() and len(value) == 32 else None
