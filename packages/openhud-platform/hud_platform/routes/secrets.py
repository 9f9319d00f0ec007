"""Routes of a team's own keys for providers and vLLM servers. Responses never contain values.

GET /v2/secrets     PUT, DELETE /v2/secrets/{name}
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import SecretStr

from hud_platform.dependencies import ADMIN, Audit, StrictBody, TeamSecrets

router = APIRouter(prefix="/v2/secrets", tags=["models"], dependencies=ADMIN)


class SecretValue(StrictBody):
    """Value of a key."""

    value: SecretStr


@router.get("")
def list_secrets(secrets: TeamSecrets) -> dict[str, Any]:
    """Names of the team's keys."""
    names = secrets.names()
    return {"items": [{"name": name} for name in names], "total": len(names)}


@router.put("/{name}")
def set_secret(secrets: TeamSecrets, audit: Audit, name: str, body: SecretValue) -> dict[str, str]:
    """Store a key, replacing an earlier one of the same name."""
    secrets.set(name, body.value.get_secret_value())
    audit.note("secret set", name)
    return {"name": name}


@router.delete("/{name}")
def remove_secret(secrets: TeamSecrets, audit: Audit, name: str) -> dict[str, str]:
    """Delete a key."""
    secrets.remove(name)
    audit.note("secret removed", name)
    return {"name": name}
