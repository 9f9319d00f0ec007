"""Environments: what they offer, their builds with their logs, and what of them runs."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query, Request, Response

from hud.platform.dashboard.events import Revision, changes
from hud.platform.dashboard.page import Pages
from hud.platform.dashboard.rendering import page
from hud.platform.dependencies import RuntimeSessionsPart, StorePart, Team
from hud.platform.environments import reports
from hud.platform.environments.registry import Environments
from hud.platform.environments.runtime_sessions import RuntimeSessions
from hud.platform.store import Store
from hud.trace import plain

router = Pages()
PER_PAGE = 50
SHOWN_LINES = 500
"""Of a build's log, its last; the whole is behind a link."""
_MOST = 2**31 - 1
Offset = Annotated[int, Query(ge=0, le=_MOST)]


@router.page("/environments")
def environments(
    request: Request, store: StorePart, team: Team, search: str = "", offset: Offset = 0
) -> Response:
    """The team's environments, the newest first."""
    items, total = Environments(store, team).page(search or None, PER_PAGE, offset)
    pending = reports.builds_under_way(store, team)
    for item in items:
        item["state"] = pending.get(plain(item["id"]), "ready" if item["latest_build"] else "empty")
    data = {"items": items, "total": total, "limit": PER_PAGE, "offset": offset}
    return page(request, "environments.html", data)


@router.page("/environments/builds/{build_id}")
def build(
    request: Request, store: StorePart, team: Team, build_id: str, lines: str = ""
) -> Response:
    """One build and its log, live while it goes on."""
    found = reports.find_build(store, team, build_id)
    shown, total = reports.last_lines(store, found["id"], None if lines == "all" else SHOWN_LINES)
    environment = None
    if found["environment_id"] is not None:
        environment = Environments(store, team).find(found["environment_id"])
    data = {
        "build": found,
        "environment": environment,
        "lines": shown,
        "total": total,
        "revision": f"{found['status']}-{total}",
        "over": found["status"] in reports.OVER,
    }
    return page(request, "build.html", data)


@router.get("/events/builds/{build_id}")
def build_events(
    request: Request, store: StorePart, team: Team, build_id: str, seen: str = ""
) -> Response:
    """Tells when a build's log or state changes, until it is over."""
    found = reports.find_build(store, team, build_id)

    def read() -> Revision:
        now = reports.find_build(store, team, build_id)
        _, total = reports.last_lines(store, now["id"], 1)
        return Revision(f"{now['status']}-{total}", now["status"] in reports.OVER)

    return changes(request, ("build", found["id"]), read, seen)


@router.page("/environments/{environment_id}")
def environment(request: Request, store: StorePart, team: Team, environment_id: str) -> Response:
    """Templates, tools and capabilities of an environment."""
    found = Environments(store, team).find(environment_id)
    manifest = found["manifest"] or {}
    data = {
        "environment": found,
        "templates": [_template(task) for task in manifest.get("tasks", [])],
        "tools": [_tool(tool) for tool in manifest.get("tools", [])],
        "capabilities": [one.get("name") for one in manifest.get("capabilities", [])],
    }
    return page(request, "environment.html", data)


@router.page("/environments/{environment_id}/builds")
def builds(
    request: Request, store: StorePart, team: Team, environment_id: str, offset: Offset = 0
) -> Response:
    """The builds of an environment; those that succeeded are its versions."""
    found = Environments(store, team).find(environment_id)
    items, total = reports.builds_page(store, team, plain(found["id"]), PER_PAGE, offset)
    for item in items:
        del item["manifest"]
    data = {"environment": found, "items": items, "total": total, "limit": PER_PAGE}
    return page(request, "environment_builds.html", {**data, "offset": offset})


@router.page("/environments/{environment_id}/running")
def running(
    request: Request,
    store: StorePart,
    sessions: RuntimeSessionsPart,
    team: Team,
    environment_id: str,
) -> Response:
    """Show the running sessions of an environment, and their resources."""
    data = _running(store, sessions, team, environment_id)
    return page(request, "environment_running.html", data)


@router.get("/events/environments/{environment_id}")
def running_events(
    request: Request,
    store: StorePart,
    sessions: RuntimeSessionsPart,
    team: Team,
    environment_id: str,
    seen: str = "",
) -> Response:
    """Tells when something of an environment begins, ends, or takes more memory."""
    identifier = _running(store, sessions, team, environment_id)["environment"]["id"]

    def read() -> Revision:
        return Revision(_running(store, sessions, team, identifier)["revision"])

    return changes(request, ("environment", team, identifier), read, seen)


def _running(
    store: Store, sessions: RuntimeSessions, team: str, environment_id: str
) -> dict[str, Any]:
    found = Environments(store, team).find(environment_id)
    now = reports.running(store, sessions, team, found)
    # In units of 8 MiB: what breathes is no change.
    taken = [(one["pid"], one["memory_bytes"] >> 23) for one in now["processes"]]
    tunnels = [(one["id"], one["tunnels"]) for one in now["sessions"]]
    revision = f"{hash((tuple(taken), tuple(tunnels), tuple(sorted(now['rollouts'].items())))):x}"
    return {"environment": found, **now, "revision": revision}


def _template(task: dict[str, Any]) -> dict[str, Any]:
    shown = {"id": task["id"], "description": task.get("description") or ""}
    schemas = {name: task[name] for name in ("args", "input", "returns") if task.get(name)}
    return {**shown, "arguments": _arguments(task.get("args") or {}), "schemas": _pretty(schemas)}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    shown = {"name": tool["name"], "description": tool.get("description") or ""}
    parameters = tool.get("parameters") or {}
    return {**shown, "arguments": _arguments(parameters), "schemas": _pretty(parameters)}


def _arguments(schema: Any) -> list[dict[str, Any]]:
    """Return what a schema of an object takes, in short."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    required = schema.get("required") or []
    return [
        {
            "name": name,
            "type": _kind(value),
            "required": name in required,
            "description": str(value.get("description") or "") if isinstance(value, dict) else "",
        }
        for name, value in properties.items()
    ]


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value) for value in schema["enum"])
    if isinstance(schema.get("anyOf"), list):
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if isinstance(schema.get("type"), list):
        return " or ".join(map(str, schema["type"]))
    return str(schema.get("type") or schema.get("$ref", "any").rpartition("/")[2])


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
