"""Editing single rows of a taskset: each change is validated like an upload and makes a new version."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Form, Response

from hud import exact_json
from hud.errors import ConflictError, UsageError
from hud_dashboard.page import Data, Pages, Rows, Sent, see
from hud_dashboard.trace.values import indented_json
from hud_platform.access.audit_log import AuditLog
from hud_platform.dependencies import Audit, Who, of_team
from hud_platform.environments.registry import Environments
from hud_platform.tasksets.rows import TasksetRows
from hud_platform.tasksets.versions import FIELDS

router = Pages()
MOST_ENVIRONMENTS = 200
TeamEnvironments = Annotated[Environments, of_team(Environments)]
_EMPTY = {"name": "", "env": "", "task": "", "args": "{}", "rest": "", "seen": ""}
"""Fields of an empty form."""
_REST = tuple(name for name in FIELDS if name != "args")


@router.page("/tasksets/{taskset_id}/edit", "taskset_edit.html")
def edit(rows: Rows, environments: TeamEnvironments, who: Who, slug: str = "") -> Data:
    """The form of a row; without `slug`, of a new row."""
    who.require("run")
    form = _EMPTY
    if slug:
        row = rows.get(slug)
        rest = {name: row[name] for name in _REST if row.get(name) is not None}
        form = {
            "name": row["name"],
            "env": row["env"],
            "task": row["scenario"],
            "args": indented_json(row["args"]),
            "rest": indented_json(rest) if rest else "",
            "seen": str(row["version"]),
        }
    return _form(rows, environments, slug, form, [])


@router.action("/tasksets/{taskset_id}/rows", "run", "taskset_edit.html")
def save(
    rows: Rows,
    environments: TeamEnvironments,
    audit: Audit,
    sent: Sent,
) -> Response | Data:
    """Add a row, or change the row of the form."""
    form = {field: sent.get(field, "") for field in _EMPTY}
    name, env, task = (form[field].strip() for field in ("name", "env", "task"))
    replaces = sent.get("replaces", "")
    try:
        more = _object("The other fields", form["rest"])
        unknown = sorted(set(more) - set(_REST))
        if unknown:
            raise UsageError(f"There is no field {unknown[0]!r}; there are {', '.join(_REST)}.")
        row = rows.put(
            {
                "name": name,
                "env": env,
                "task_id": task,
                "args": _object("The arguments", form["args"]),
                **more,
            },
            replaces=replaces or None,
            seen=_number(form["seen"]),
        )
    except (UsageError, ConflictError) as error:
        return _form(rows, environments, replaces, form, str(error).splitlines())
    _noted(audit, rows, row["version"], f"{'changed' if replaces else 'added'} {row['name']}")
    query = urlencode({"slug": row["name"]})
    return see(f"/tasksets/{rows.taskset['id']}/row?{query}")


@router.action("/tasksets/{taskset_id}/remove", "run")
def remove(
    rows: Rows,
    audit: Audit,
    slug: Annotated[str, Form()],
    seen: Annotated[str, Form()] = "",
) -> Response:
    """Remove a row; older versions keep it."""
    version = rows.remove(slug, _number(seen))
    _noted(audit, rows, version, f"removed {slug}")
    return see(f"/tasksets/{rows.taskset['id']}")


def _form(
    rows: TasksetRows,
    environments: Environments,
    slug: str,
    form: dict[str, str],
    problems: list[str],
) -> Data:
    rows_of_team, _ = environments.page(None, MOST_ENVIRONMENTS, 0)
    return {
        "taskset": rows.taskset,
        "slug": slug,
        "given": form,
        "problems": problems,
        "environments": [environment["name"] for environment in rows_of_team],
        "templates": _templates(environments, form["env"]),
    }


def _templates(environments: Environments, env: str) -> list[dict[str, Any]]:
    """Return the known templates of an environment with the schemas of their arguments."""
    manifest = environments.manifests([env]).get(env) if env else None
    return [
        {"id": task["id"], "args": indented_json(task.get("args") or {})}
        for task in (manifest or {}).get("tasks", [])
    ]


def _object(what: str, text: str) -> dict[str, Any]:
    """Return a JSON object from a form. Raises `UsageError` for invalid JSON."""
    if not text.strip():
        return {}
    if exact_json.is_nested_deep(text.encode()):
        raise UsageError(f"{what} are nested too deep.")
    try:
        parsed = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise UsageError(f"{what} are not JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise UsageError(f'{what} must be a JSON object, such as {{"n": 3}}.')
    return parsed


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def _number(text: str) -> int | None:
    return int(text[:9]) if text.isascii() and text.isdigit() else None


def _noted(audit: AuditLog, rows: TasksetRows, version: int, what: str) -> None:
    taskset = rows.taskset
    audit.note(
        "taskset changed",
        taskset["name"],
        taskset_id=taskset["id"],
        version=version,
        change=what[:200],
    )
