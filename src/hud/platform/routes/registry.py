"""Routes of environments.

GET /v2/registry?search=      GET /v2/registry/{id}
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from hud.platform.access import needs
from hud.platform.dependencies import of_team
from hud.platform.environments.registry import Environments

router = APIRouter(
    prefix="/v2/registry", tags=["environments"], dependencies=[Depends(needs("read"))]
)

TeamEnvironments = Annotated[Environments, of_team(Environments)]


@router.get("")
def list_environments(
    environments: TeamEnvironments,
    search: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> dict[str, Any]:
    """The team's environments, the newest first."""
    items, total = environments.page(search, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.get("/{reference}")
def get_environment(environments: TeamEnvironments, reference: str) -> dict[str, Any]:
    """One environment, by id or name."""
    return environments.find(reference)
