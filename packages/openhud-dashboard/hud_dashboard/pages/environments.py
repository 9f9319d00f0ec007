"""Pages of environments: templates and tools, builds with logs, running sessions."""

from __future__ import annotations

import json
from typing import Any

from hud.trace import plain
from hud_dashboard.events import Following, Revision
from hud_dashboard.page import Data, Offset, Pages, paged
from hud_dashboard.trace.values import indented_json
from hud_platform.dependencies import RuntimeSessionsPart, StorePart, Team
from hud_platform.environments import reports
from hud_platform.environments.registry import Environments
from hud_platform.store.played_environments import played_environments

router = Pages()
PER_PAGE = 50
SHOWN_LINES = 500
"""Number of last lines shown of a build's log; a link shows all."""


@router.page("/environments", "environments.html", csv=True)
def environments(store: StorePart, team: Team, search: str = "", offset: Offset = 0) -> Data:
    """The team's environments, newest first."""
    items, total = Environments(store, team).page(search or None, PER_PAGE, offset)
    pending = reports.builds_under_way(store, team)
    for item in items:
        item["state"] = pending.get(plain(item["id"]), "ready" if item["latest_build"] else "empty")
    deployed = {item["name"] for item in items}
    played = [row for row in played_environments(store, team) if row["name"] not in deployed]
    return {"items": items, "played": played, **paged(total, PER_PAGE, offset)}


@router.page("/environments/builds/{build_id}", "build.html")
def build(store: StorePart, team: Team, build_id: str, lines: str = "") -> Data:
    """One build and its log, live during the build."""
    row = reports.find_build(store, team, build_id)
    shown, total = reports.last_lines(store, row["id"], None if lines == "all" else SHOWN_LINES)
    environment = None
    if row["environment_id"] is not None:
        environment = Environments(store, team).find(row["environment_id"])
    return {
        "build": row,
        "environment": environment,
        "lines": shown,
        "total": total,
        "revision": f"{row['status']}-{total}",
        "over": row["status"] in reports.OVER,
    }


@router.events("/events/builds/{build_id}")
def build_events(store: StorePart, team: Team, build_id: str) -> Following:
    """Event stream of a build's log and state, until its end."""
    row = reports.find_build(store, team, build_id)

    def read() -> Revision:
        now = reports.find_build(store, team, build_id)
        _, total = reports.last_lines(store, now["id"], 1)
        return Revision(f"{now['status']}-{total}", now["status"] in reports.OVER)

    return ("build", row["id"]), read


@router.page("/environments/{environment_id}", "environment.html")
def environment(store: StorePart, team: Team, environment_id: str) -> Data:
    """Templates, tools and capabilities of an environment."""
    row = Environments(store, team).find(environment_id)
    manifest = row["manifest"] or {}
    return {
        "environment": row,
        "templates": [_template(task) for task in manifest.get("tasks", [])],
        "tools": [_tool(tool) for tool in manifest.get("tools", [])],
        "capabilities": [capability.get("name") for capability in manifest.get("capabilities", [])],
    }


@router.page("/environments/{environment_id}/builds", "environment_builds.html")
def builds(store: StorePart, team: Team, environment_id: str, offset: Offset = 0) -> Data:
    """The builds of an environment; successful ones are its versions."""
    row = Environments(store, team).find(environment_id)
    items, total = reports.builds_page(store, team, plain(row["id"]), PER_PAGE, offset)
    for item in items:
        del item["manifest"]
    return {"environment": row, "items": items, **paged(total, PER_PAGE, offset)}


@router.page("/environments/{environment_id}/running", "environment_running.html")
def running(
    store: StorePart, sessions: RuntimeSessionsPart, team: Team, environment_id: str
) -> Data:
    """Show the running sessions of an environment, and their resources."""
    row = Environments(store, team).find(environment_id)
    now = reports.running(store, sessions, team, row)
    # In units of 8 MiB: small fluctuations are not a change.
    taken = [(process["pid"], process["memory_bytes"] >> 23) for process in now["processes"]]
    tunnels = [(session["id"], session["tunnels"]) for session in now["sessions"]]
    revision = f"{hash((tuple(taken), tuple(tunnels), tuple(sorted(now['rollouts'].items())))):x}"
    return {"environment": row, **now, "revision": revision}


@router.events("/events/environments/{environment_id}")
def running_events(
    store: StorePart, sessions: RuntimeSessionsPart, team: Team, environment_id: str
) -> Following:
    """Event stream of an environment's sessions, rollouts, processes and memory."""
    identifier = running(store, sessions, team, environment_id)["environment"]["id"]

    def read() -> Revision:
        return Revision(running(store, sessions, team, identifier)["revision"])

    return ("environment", team, identifier), read


def _template(task: dict[str, Any]) -> dict[str, Any]:
    shown = {"id": task["id"], "description": task.get("description") or ""}
    schemas = {name: task[name] for name in ("args", "input", "returns") if task.get(name)}
    return {
        **shown,
        "arguments": _arguments(task.get("args") or {}),
        "schemas": indented_json(schemas),
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    shown = {"name": tool["name"], "description": tool.get("description") or ""}
    parameters = tool.get("parameters") or {}
    return {**shown, "arguments": _arguments(parameters), "schemas": indented_json(parameters)}


def _arguments(schema: Any) -> list[dict[str, Any]]:
    """Return the arguments of an object's schema, as short records."""
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
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if isinstance(schema.get("type"), list):
        return " or ".join(map(str, schema["type"]))
    return str(schema.get("type") or schema.get("$ref", "any").rpartition("/")[2])
