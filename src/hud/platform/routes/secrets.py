"""Routes of a team's own keys for providers and vLLM servers. No answer holds a value.

GET /v2/secrets     PUT, DELETE /v2/secrets/{name}
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, SecretStr

from hud.platform.access import caller, needs
from hud.platform.access.audit import noted
from hud.platform.secrets import Secrets

router = APIRouter(prefix="/v2/secrets", tags=["models"], dependencies=[Depends(needs("admin"))])


class SecretValue(BaseModel):
    """The value of a key."""

    model_config = ConfigDict(extra="forbid")

    value: SecretStr


@router.get("")
def list_secrets(request: Request) -> dict[str, Any]:
    """The names of the team's keys."""
    names = _secrets(request).names()
    return {"items": [{"name": name} for name in names], "total": len(names)}


@router.put("/{name}")
def set_secret(request: Request, name: str, body: SecretValue) -> dict[str, str]:
    """Keep a key, in place of an earlier one of the same name."""
    _secrets(request).set(name, body.value.get_secret_value())
    noted(request, "secret set", name)
    return {"name": name}


@router.delete("/{name}")
def remove_secret(request: Request, name: str) -> dict[str, str]:
    """Forget a key."""
    _secrets(request).remove(name)
    noted(request, "secret removed", name)
    return {"name": name}


def _secrets(request: Request) -> Secrets:
    return Secrets(request.app.state.platform.home, caller(request).team_id)
