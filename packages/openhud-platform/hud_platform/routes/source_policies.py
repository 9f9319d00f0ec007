"""Routes of the policies of sources.

GET /v2/sources/{source}/policy      PUT /v2/sources/{source}/policy
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from hud_platform.dependencies import ADMIN, READ, StorePart, StrictBody, Team
from hud_platform.store import source_policies

router = APIRouter(prefix="/v2/sources", tags=["traces"], dependencies=READ)


class Policy(StrictBody):
    """Policy of a source."""

    redact: list[str]
    """`keys`, `mail`, and regular expressions."""
    keep_days: int | None = None
    """None: for ever."""
    may_train: bool = True


@router.get("/{source}/policy")
def get_policy(store: StorePart, team: Team, source: str) -> dict[str, Any]:
    """The team's policy for runs of a source."""
    return source_policies.policy_of(store, team, source)


@router.put("/{source}/policy", dependencies=ADMIN)
def set_policy(store: StorePart, team: Team, source: str, body: Policy) -> dict[str, Any]:
    """Set the team's policy for runs of a source."""
    return source_policies.set_policy(store, team, source, **body.model_dump())
