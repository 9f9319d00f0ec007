"""Routes of HUD's hosted platform that this server does not implement; they respond with 404 in JSON.

/v2/imports      /v2/data      /v2/qa      /v2/qa-agents
"""

from __future__ import annotations

from fastapi import APIRouter

from hud.errors import NotFoundError
from hud_platform.dependencies import READ

router = APIRouter(prefix="/v2", dependencies=READ, include_in_schema=False)
_METHODS = ["GET", "POST", "PUT", "DELETE"]


@router.api_route("/imports", methods=_METHODS)
@router.api_route("/imports/{rest:path}", methods=_METHODS)
@router.api_route("/data/{rest:path}", methods=_METHODS)
def imports() -> None:
    """Imports of archives of tasks."""
    raise NotFoundError(
        "This server does not import archives of other formats; use hud sync tasks."
    )


@router.api_route("/qa/{rest:path}", methods=_METHODS)
@router.api_route("/qa-agents", methods=_METHODS)
@router.api_route("/qa-agents/{rest:path}", methods=_METHODS)
def quality() -> None:
    """QA checks of traces and tasks."""
    raise NotFoundError("This server has no QA checks.")
