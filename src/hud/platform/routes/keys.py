"""Routes of keys, of who one is, and of projects.

GET  /v2/auth/me     GET, POST /v2/keys     DELETE /v2/keys/{id}     GET, POST /v2/projects     GET /v2/projects/{id}
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from hud.platform.access import Scope, caller, needs
from hud.platform.access.audit import noted
from hud.platform.access.teams import Projects, Teams
from hud.platform.store.tables import LOCAL_TEAM
from hud.trace import dashed

router = APIRouter(prefix="/v2", tags=["keys"])
_READ = [Depends(needs("read"))]
_RUN = [Depends(needs("run"))]
_ADMIN = [Depends(needs("admin"))]


class NewKey(BaseModel):
    """A key to make."""

    name: str
    scopes: list[Scope] = ["train"]
    team: str | None = None
    """Another team than the caller's: only an admin of the first team may say so."""
    expires_in: Annotated[float | None, Field(gt=0, le=100 * 365 * 86_400)] = None
    """Seconds."""
    requests_per_minute: Annotated[int | None, Field(gt=0)] = None
    tokens_per_minute: Annotated[int | None, Field(gt=0)] = None


class NewProject(BaseModel):
    """A project to make."""

    name: str
    description: str = ""


@router.get("/auth/me", dependencies=_READ)
def me(request: Request) -> dict[str, Any]:
    """Who asks; the ids are the same for as long as the key is."""
    who = caller(request)
    return {
        "user_id": dashed(who.user_id or LOCAL_TEAM),
        "team_id": dashed(who.team_id),
        "scopes": sorted(who.scopes),
    }


@router.get("/keys", dependencies=_ADMIN)
def list_keys(request: Request) -> dict[str, Any]:
    """The team's keys, newest first, without their secrets."""
    found = request.app.state.platform.keys.list(caller(request).team_id)
    return {"items": [key.shown() for key in found], "total": len(found)}


@router.post("/keys", dependencies=_ADMIN)
def create_key(request: Request, body: NewKey) -> dict[str, Any]:
    """Make a key. `key` is its secret, shown in this answer and never again."""
    platform, who = request.app.state.platform, caller(request)
    key, secret = platform.keys.mint(
        body.name,
        Teams(platform.store).for_key_of(who.team_id, body.team),
        scopes=body.scopes,
        expires_in=body.expires_in,
        requests_per_minute=body.requests_per_minute,
        tokens_per_minute=body.tokens_per_minute,
        maker=platform.keys.by_id(who.key_id) if who.key_id else None,
    )
    noted(request, "key made", key.name, **key.noted())
    return {**key.shown(), "key": secret}


@router.delete("/keys/{reference}", dependencies=_ADMIN)
def revoke_key(request: Request, reference: str) -> dict[str, Any]:
    """Revoke a key of the team, named by id, start of an id, or name."""
    revoked = request.app.state.platform.keys.revoke(caller(request).team_id, reference)
    noted(request, "key revoked", revoked.name, **revoked.noted())
    return dict(revoked.shown())


@router.get("/projects", dependencies=_READ)
def list_projects(
    request: Request,
    search: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> dict[str, Any]:
    """The team's projects, the default one first."""
    items, total = _projects(request).page(search, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.post("/projects", dependencies=_RUN)
def create_project(request: Request, body: NewProject) -> dict[str, Any]:
    """Make a project."""
    return _projects(request).create(body.name, body.description)


@router.get("/projects/{project_id}", dependencies=_READ)
def get_project(request: Request, project_id: str) -> dict[str, Any]:
    """One project."""
    return _projects(request).get(project_id)


def _projects(request: Request) -> Projects:
    return Projects(request.app.state.platform.store, caller(request).team_id)
