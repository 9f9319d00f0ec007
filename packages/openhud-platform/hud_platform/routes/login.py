"""Routes of device login: a device requests a code, and a user confirms it in the browser.

POST /auth/device/code     POST /auth/device/token     `/auth/device`, where a user confirms it, is a page.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from hud_platform.access.audit_log import AuditLog
from hud_platform.access.device_login import EXPIRES_SECONDS, INTERVAL_SECONDS, DeviceLogins
from hud_platform.access.limits import Visitors
from hud_platform.access.teams import Teams
from hud_platform.dependencies import StorePart, part

router = APIRouter(prefix="/auth/device", tags=["keys"])

BEGUN_PER_MINUTE = 12
POLLS_PER_MINUTE = 240
"""Maximum number of polls from one address, which several devices may share."""
Logins = Annotated[DeviceLogins, part(lambda parts: DeviceLogins(parts.store, parts.keys))]
VisitorsPart = Annotated[Visitors, part(lambda parts: parts.visitors)]


def limited(kind: str, per_minute: int) -> Any:
    """Return a dependency that limits requests without a key by client address."""

    async def check(request: Request, visitors: VisitorsPart) -> None:
        address = request.client.host if request.client else ""
        visitors.admit(address, kind, per_minute)

    return Depends(check)


class CodeRequest(BaseModel):
    """Request of a device to log in."""

    client_name: str = "a device"
    client_version: str | None = None


class TokenRequest(BaseModel):
    """Poll of a device for its key."""

    device_code: str


@router.post("/code", dependencies=[limited("code", BEGUN_PER_MINUTE)])
def begin(request: Request, logins: Logins, body: CodeRequest) -> dict[str, Any]:
    """Start a login; returns the code that the device displays and the code for polling."""
    begun = logins.begin(body.client_name)
    page = f"{request.base_url}auth/device"
    return {
        "device_code": begun.device_code,
        "user_code": begun.user_code,
        "verification_uri": page,
        "verification_uri_complete": f"{page}?code={begun.user_code}",
        "expires_in": EXPIRES_SECONDS,
        "interval": INTERVAL_SECONDS,
    }


@router.post("/token", dependencies=[limited("token", POLLS_PER_MINUTE)])
def collect(store: StorePart, logins: Logins, body: TokenRequest) -> JSONResponse:
    """The device's key, once its login was confirmed; otherwise 400 with the reason of RFC 8628."""
    issued = logins.collect(body.device_code)
    if isinstance(issued, str):
        return JSONResponse({"detail": {"error": issued}}, status_code=400)
    key, secret = issued
    teams = Teams(store)
    AuditLog(store, key.identity).note("signed in", key.name, by="a device")
    return JSONResponse(
        {
            "api_key": secret,
            "user": {"email": None, "id": key.user_id},
            "team": {"name": teams.find(key.team_id).name},
        }
    )
