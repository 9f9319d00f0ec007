"""Routes of environments.

GET /v2/registry?search=      GET /v2/registry/{id}
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from hud.platform.access import caller, needs
from hud.platform.environments.registry import Environments

router = APIRouter(
    prefix="/v2/registry", tags=["environments"], dependencies=[Depends(needs("read"))]
)


@router.get("")
def list_environments(
    request: Request,
    search: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> dict[str, Any]:
    """The team's environments, the newest first."""
    environments = Environments(request.app.state.platform.store, caller(request).team_id)
    items, total = environments.page(search, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.get("/{reference}")
def get_environment(request: Request, reference: str) -> dict[str, Any]:
    """One environment, by id or name."""
    return Environments(request.app.state.platform.store, caller(request).team_id).find(reference)
