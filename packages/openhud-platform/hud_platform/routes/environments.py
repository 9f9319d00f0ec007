"""Routes of environments.

GET /v2/registry?search=      GET /v2/registry/{id}
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from hud_platform.dependencies import READ, Limit, Offset, of_team
from hud_platform.environments.registry import Environments

router = APIRouter(prefix="/v2/registry", tags=["environments"], dependencies=READ)

TeamEnvironments = Annotated[Environments, of_team(Environments)]


@router.get("")
def list_environments(
    environments: TeamEnvironments, search: str | None = None, limit: Limit = 20, offset: Offset = 0
) -> dict[str, Any]:
    """The team's environments, newest first."""
    items, total = environments.page(search, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.get("/{reference}")
def get_environment(environments: TeamEnvironments, reference: str) -> dict[str, Any]:
    """One environment, by id or name."""
    return environments.find(reference)
