"""Routes of tasksets.

GET, POST /v2/tasksets      GET /v2/tasksets/by-name/{name}      GET /v2/tasksets/{id}
GET /v2/tasksets/{id}/export?version=      GET /v2/tasksets/{id}/versions      POST /v2/tasks/upload
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hud_platform.dependencies import READ, RUN, Audit, Limit, Offset, of_team
from hud_platform.tasksets.rows import checked
from hud_platform.tasksets.versions import Tasksets

router = APIRouter(prefix="/v2", tags=["tasksets"])
TeamTasksets = Annotated[Tasksets, of_team(Tasksets)]
_MOST = 2**31 - 1
"""Largest integer of the database's column."""


class NewTaskset(BaseModel):
    """Request for a new taskset."""

    name: str
    project_id: str | None = None


class Upload(BaseModel):
    """Rows to add to a taskset or to replace in it."""

    taskset_name: str = ""
    taskset_id: str | None = None
    project_id: str | None = None
    tasks: list[dict[str, Any]]


@router.get("/tasksets", dependencies=READ)
def list_tasksets(
    tasksets: TeamTasksets, search: str | None = None, limit: Limit = 100, offset: Offset = 0
) -> dict[str, Any]:
    """The team's tasksets, most recently changed first."""
    items, total = tasksets.page(search, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.post("/tasksets", dependencies=RUN)
def create_taskset(tasksets: TeamTasksets, audit: Audit, body: NewTaskset) -> dict[str, Any]:
    """Create an empty taskset."""
    made = tasksets.create(body.name, body.project_id)
    audit.note("taskset changed", made["name"], taskset_id=made["id"], version=0)
    return made


@router.get("/tasksets/by-name/{name:path}", dependencies=READ)
def find_taskset(tasksets: TeamTasksets, name: str) -> dict[str, Any]:
    """A taskset's id by its name; 404 for an unknown name."""
    row = tasksets.find(name)
    return {"taskset_id": row["id"], **row}


@router.get("/tasksets/{taskset_id}", dependencies=READ)
def get_taskset(tasksets: TeamTasksets, taskset_id: str) -> dict[str, Any]:
    """One taskset, without its rows."""
    return tasksets.find(taskset_id)


@router.get("/tasksets/{taskset_id}/export", dependencies=READ)
def export_taskset(
    tasksets: TeamTasksets,
    taskset_id: str,
    version: Annotated[int | None, Query(ge=0, le=_MOST)] = None,
) -> dict[str, Any]:
    """A taskset with its rows as uploaded."""
    return tasksets.export(taskset_id, version)


@router.get("/tasksets/{taskset_id}/versions", dependencies=READ)
def list_versions(tasksets: TeamTasksets, taskset_id: str) -> dict[str, Any]:
    """Changes by each version of a taskset, newest first."""
    items = tasksets.versions(taskset_id)
    return {"items": items, "total": len(items)}


@router.post("/tasks/upload", dependencies=RUN)
def upload(tasksets: TeamTasksets, audit: Audit, body: Upload) -> dict[str, Any]:
    """Add rows to a taskset and replace changed ones; rows are never removed."""
    rows = checked(tasksets.store, tasksets.team, body.tasks)
    done = tasksets.upload(
        body.taskset_name,
        rows,
        taskset_id=body.taskset_id,
        project_id=body.project_id,
    )
    if done["tasks_created"] or done["tasks_updated"]:
        audit.note("taskset changed", body.taskset_name or done["taskset_id"], **done)
    return done
