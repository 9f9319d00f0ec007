"""Pages of tasksets: rows with the results of models, one row, versions and imports."""

from __future__ import annotations

import json
import re
import shlex
from typing import Annotated, Any

from fastapi import Form, Query, Response

from hud import exact_json
from hud.errors import ConflictError, UsageError
from hud.trace import plain
from hud_dashboard.page import Data, Offset, Pages, Rows, paged, see
from hud_dashboard.queries.difficulty import Difficulty, difficulties, recent_runs
from hud_dashboard.queries.played_tasksets import played_tasksets
from hud_dashboard.queries.task_history import task_history
from hud_platform.dependencies import Audit, StorePart, Team, Who, of_team
from hud_platform.store.task_labels import label_of
from hud_platform.tasksets.rows import TasksetRows
from hud_platform.tasksets.versions import Tasksets

router = Pages()
PER_PAGE = 50
MOST_MODELS = 6
"""Maximum number of columns for models: those with the most runs."""
RECENT_RUNS = 20
ORDERS = ("", "mean", "-mean", "spread", "-spread", "runs", "-runs", "name", "-name")
TeamTasksets = Annotated[Tasksets, of_team(Tasksets)]
Version = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


@router.page("/tasksets", "tasksets.html", csv=True)
def tasksets(
    store: StorePart, team: Team, sets: TeamTasksets, search: str = "", offset: Offset = 0
) -> Data:
    """The team's tasksets, most recently changed first, and those that were played from files."""
    items, total = sets.page(search or None, PER_PAGE, offset)
    counts = sets.row_counts([plain(item["id"]) for item in items])
    for item in items:
        item["rows"] = counts.get(plain(item["id"]), 0)
    played = played_tasksets(store, team)
    return {"items": items, "played": played, **paged(total, PER_PAGE, offset)}


@router.page("/tasksets/played", "task_history.html")
def played_taskset(store: StorePart, team: Team, name: str, environment: str) -> Data:
    """A taskset that was played from a file: its tasks over the models that played them."""
    return {
        "name": name,
        "environment": environment,
        **task_history(store, team, name, environment),
    }


@router.page("/tasksets/new", "tasksets_new.html")
def new_taskset(who: Who) -> Data:
    """The form of a new taskset."""
    who.require("run")
    return {"name": "", "problem": None}


@router.action("/tasksets", "run", "tasksets_new.html")
def make_taskset(
    sets: TeamTasksets, audit: Audit, name: Annotated[str, Form()] = ""
) -> Response | Data:
    """Create an empty taskset."""
    try:
        made = sets.create(name, None)
    except (UsageError, ConflictError) as error:
        return {"name": name, "problem": str(error)}
    audit.note("taskset changed", made["name"], taskset_id=made["id"], version=0)
    return see(f"/tasksets/{made['id']}")


@router.page("/tasksets/{taskset_id}", "taskset.html")
def taskset(
    store: StorePart,
    team: Team,
    rows: Rows,
    search: str = "",
    sort: str = "",
    version: Version = None,
    offset: Offset = 0,
) -> Data:
    """The rows of a taskset, each with its difficulty for models."""
    identifier = plain(rows.taskset["id"])
    slugs = rows.slugs(search, version)
    scores = difficulties(store, team, identifier)
    if sort in ORDERS[1:] and sort.strip("-") != "name":
        slugs = _sorted(slugs, scores, sort)
    elif sort:
        slugs = sorted(slugs, reverse=sort == "-name")
    shown = slugs[offset : offset + PER_PAGE]
    items = [
        {
            **row,
            **scores.get(row["name"], Difficulty()).shown(),
            "label": row_label(row),
        }
        for row in rows.named(shown, version)
    ]
    return {
        "taskset": rows.taskset,
        "command": sync_command(rows.taskset),
        "items": items,
        "models": _models([scores[slug] for slug in shown if slug in scores]),
        "version": version,
        "sort": sort,
        **paged(len(slugs), PER_PAGE, offset),
    }


@router.page("/tasksets/{taskset_id}/row", "taskset_row.html")
def row(store: StorePart, team: Team, rows: Rows, slug: str) -> Data:
    """One row: its content, its history, and the results of models."""
    history = rows.history(slug)
    current = history[0]["row"] if history else rows.get(slug)
    identifier = plain(rows.taskset["id"])
    scores = difficulties(store, team, identifier).get(slug, Difficulty())
    return {
        "taskset": rows.taskset,
        "slug": slug,
        "label": slug if current is None else row_label({**current, "name": slug}),
        "row": current,
        "history": history,
        "difficulty": scores.shown(),
        "runs": recent_runs(store, team, identifier, slug, RECENT_RUNS),
    }


@router.page("/tasksets/{taskset_id}/imports", "taskset_imports.html")
def imports(rows: Rows, offset: Offset = 0) -> Data:
    """Versions of a taskset with their changes, and the form that adds rows."""
    return _imports(rows, offset, "", "")


@router.action("/tasksets/{taskset_id}/imports", "run", "taskset_imports.html")
def bring_in(rows: Rows, audit: Audit, text: Annotated[str, Form()] = "") -> Response | Data:
    """Add rows from JSON or JSON lines, and replace rows with the same names, like `hud sync`."""
    try:
        done = rows.bring_in(tasks_in(text))
    except UsageError as error:
        return _imports(rows, 0, str(error), text)
    if done["tasks_created"] or done["tasks_updated"]:
        audit.note("taskset changed", rows.taskset["name"], **done)
    return see(f"/tasksets/{rows.taskset['id']}/imports")


@router.get("/tasksets/{taskset_id}/rows.jsonl")
def download(sets: TeamTasksets, taskset_id: str, version: Version = None) -> Response:
    """The rows as JSON lines, in the format of exports."""
    exported = sets.export(taskset_id, version)
    lines = b"".join(exact_json.dumps(task) + b"\n" for task in exported["tasks"])
    name = f"{plain(exported['id'])[:8]}-v{exported['version']}.jsonl"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(lines, media_type="application/x-ndjson", headers=headers)


def row_label(row: dict[str, Any]) -> str:
    """Return the display name of a row: its template with the arguments, in place of a digest."""
    return label_of(row["name"], {"id": row["scenario"], "args": row["args"]})


def sync_command(taskset: dict[str, Any]) -> str:
    """Return the command that uploads the tasks of a file to a taskset; a name with unsafe characters is omitted."""
    name = taskset["name"] if re.fullmatch(r"[\w .-]+", taskset["name"]) else "NAME"
    return f"hud sync tasks {shlex.quote(name)} tasks.py"


def tasks_in(text: str) -> list[dict[str, Any]]:
    """Return the tasks of an import: a JSON list, an object with `tasks`, or a line of JSON for each.

    Raises `UsageError` for anything else.
    """
    plain_text = text.strip()
    if not plain_text:
        raise UsageError("Paste tasks first: a JSON list, or a line of JSON for each.")
    if exact_json.is_nested_deep(plain_text.encode()):
        raise UsageError("This is nested too deep.")
    try:
        parsed = json.loads(plain_text)
    except ValueError as error:
        if plain_text.startswith("["):
            raise UsageError(f"This is not JSON: {error}.") from None
        parsed = [
            _task_in(line, number)
            for number, line in enumerate(plain_text.splitlines(), 1)
            if line.strip()
        ]
    if isinstance(parsed, dict):
        parsed = parsed["tasks"] if isinstance(parsed.get("tasks"), list) else [parsed]
    if not isinstance(parsed, list) or not all(isinstance(task, dict) for task in parsed):
        raise UsageError("Tasks are JSON objects, in a list or one a line.")
    return [{"name": task.get("slug"), **task} if "slug" in task else task for task in parsed]


def _task_in(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UsageError(f"Line {number} is not JSON: {error}.") from None


def _imports(rows: TasksetRows, offset: int, problem: str, text: str) -> Data:
    items, total = rows.versions(PER_PAGE, offset)
    return {
        "taskset": rows.taskset,
        "items": items,
        **paged(total, PER_PAGE, offset),
        "problems": problem.splitlines(),
        "command": sync_command(rows.taskset),
        "text": text,
    }


def _sorted(slugs: list[str], scores: dict[str, Difficulty], sort: str) -> list[str]:
    """Sort names by a measure; names without it are last in both directions."""
    name = sort.removeprefix("-")
    values = {slug: getattr(scores.get(slug, Difficulty()), name) for slug in slugs}
    measured = [slug for slug in slugs if values[slug] is not None]
    measured.sort(key=lambda slug: values[slug], reverse=sort.startswith("-"))
    return measured + [slug for slug in slugs if values[slug] is None]


def _models(scores: list[Difficulty]) -> list[str]:
    """Return the models with the most runs of these tasks; people, if they played, are first."""
    runs: dict[str, int] = {}
    for difficulty in scores:
        for model, score in difficulty.models.items():
            runs[model] = runs.get(model, 0) + score.runs
    first = sorted(runs, key=lambda model: (model != "human", -runs[model], model))[:MOST_MODELS]
    return first
