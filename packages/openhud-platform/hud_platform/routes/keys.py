"""Routes of keys, of the caller's identity, and of projects.

GET  /v2/auth/me     GET, POST /v2/keys     DELETE /v2/keys/{id}     GET, POST /v2/projects     GET /v2/projects/{id}
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from hud.trace import dashed
from hud_platform.access import Scope
from hud_platform.access.teams import Projects, Teams
from hud_platform.dependencies import (
    ADMIN,
    READ,
    RUN,
    Audit,
    KeysPart,
    Limit,
    Offset,
    StorePart,
    Team,
    Who,
    of_team,
)
from hud_platform.store.tables import LOCAL_TEAM

router = APIRouter(prefix="/v2", tags=["keys"])
TeamProjects = Annotated[Projects, of_team(Projects)]


class NewKey(BaseModel):
    """Request for a new key."""

    name: str
    scopes: list[Scope] = ["train"]
    team: str | None = None
    """Another team than the caller's; only for admins of the first team."""
    expires_in: Annotated[float | None, Field(gt=0, le=100 * 365 * 86_400)] = None
    """Lifetime in seconds; None: unlimited."""
    requests_per_minute: Annotated[int | None, Field(gt=0)] = None
    tokens_per_minute: Annotated[int | None, Field(gt=0)] = None


class NewProject(BaseModel):
    """Request for a new project."""

    name: str
    description: str = ""


@router.get("/auth/me", dependencies=READ)
def me(who: Who) -> dict[str, Any]:
    """Identity of the caller; its ids are stable for the lifetime of the key."""
    return {
        "user_id": dashed(who.user_id or LOCAL_TEAM),
        "team_id": dashed(who.team_id),
        "scopes": sorted(who.scopes),
    }


@router.get("/keys", dependencies=ADMIN)
def list_keys(
    keys: KeysPart, team: Team, limit: Limit = 1000, offset: Offset = 0
) -> dict[str, Any]:
    """The team's keys, newest first, without their secrets."""
    listed, total = keys.page(team, limit, offset)
    return {"items": [key.shown() for key in listed], "total": total}


@router.post("/keys", dependencies=ADMIN)
def create_key(
    store: StorePart, keys: KeysPart, who: Who, audit: Audit, body: NewKey
) -> dict[str, Any]:
    """Create a key. `key` is its secret, which is returned only in this response."""
    key, secret = keys.mint(
        body.name,
        Teams(store).for_key_of(who.team_id, body.team),
        **body.model_dump(exclude={"name", "team"}),
        maker=keys.by_id(who.key_id) if who.key_id else None,
    )
    audit.note("key created", key.name, **key.noted())
    return {**key.shown(), "key": secret}


@router.delete("/keys/{reference}", dependencies=ADMIN)
def revoke_key(keys: KeysPart, team: Team, audit: Audit, reference: str) -> dict[str, Any]:
    """Revoke a key of the team, named by id, start of an id, or name."""
    revoked = keys.revoke(team, reference)
    audit.note("key revoked", revoked.name, **revoked.noted())
    return dict(revoked.shown())


@router.get("/projects", dependencies=READ)
def list_projects(
    projects: TeamProjects, search: str | None = None, limit: Limit = 100, offset: Offset = 0
) -> dict[str, Any]:
    """The team's projects, the default one first."""
    items, total = projects.page(search, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.post("/projects", dependencies=RUN)
def create_project(projects: TeamProjects, body: NewProject) -> dict[str, Any]:
    """Create a project."""
    return projects.create(body.name, body.description)


@router.get("/projects/{project_id}", dependencies=READ)
def get_project(projects: TeamProjects, project_id: str) -> dict[str, Any]:
    """One project."""
    return projects.get(project_id)
