"""Routes of device login: a device requests a code, and a user confirms it in the browser.

POST /auth/device/code     POST /auth/device/token     GET, POST /auth/device
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel

from hud.errors import NotFoundError
from hud.platform.access.audit import AuditLog
from hud.platform.access.device_login import EXPIRES_SECONDS, INTERVAL_SECONDS, DeviceLogins
from hud.platform.access.limits import Visitors
from hud.platform.access.teams import Teams
from hud.platform.dependencies import KeysPart, StorePart, part

router = APIRouter(prefix="/auth/device", tags=["keys"])

BEGUN_PER_MINUTE = 12
POLLS_PER_MINUTE = 240
"""Maximum number of polls from one address, which several devices may share."""
CONFIRMED_PER_MINUTE = 30
Logins = Annotated[DeviceLogins, part(lambda parts: DeviceLogins(parts.store, parts.keys))]
VisitorsPart = Annotated[Visitors, part(lambda parts: parts.visitors)]


def _limited(kind: str, per_minute: int) -> Any:
    """Return a dependency that limits requests without a key by client address."""

    async def check(request: Request, visitors: VisitorsPart) -> None:
        address = request.client.host if request.client else ""
        visitors.admit(address, kind, per_minute)

    return Depends(check)


_CONFIRM = [_limited("confirm", CONFIRMED_PER_MINUTE)]


class CodeRequest(BaseModel):
    """Request of a device to log in."""

    client_name: str = "a device"
    client_version: str | None = None


class TokenRequest(BaseModel):
    """Poll of a device for its key."""

    device_code: str


@router.post("/code", dependencies=[_limited("code", BEGUN_PER_MINUTE)])
def begin(request: Request, logins: Logins, body: CodeRequest) -> dict[str, Any]:
    """Start a login; returns the code that the device displays and the code for polling."""
    begun = logins.begin(body.client_name)
    page = str(request.url_for("confirm_page"))
    return {
        "device_code": begun.device_code,
        "user_code": begun.user_code,
        "verification_uri": page,
        "verification_uri_complete": f"{page}?code={begun.user_code}",
        "expires_in": EXPIRES_SECONDS,
        "interval": INTERVAL_SECONDS,
    }


@router.post("/token", dependencies=[_limited("token", POLLS_PER_MINUTE)])
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


@router.get("", response_class=HTMLResponse, dependencies=_CONFIRM)
def confirm_page(logins: Logins, code: str = "") -> HTMLResponse:
    """Page for confirming a device."""
    return _form(logins, code, "")


@router.post("", response_class=HTMLResponse, dependencies=_CONFIRM)
def confirm(
    logins: Logins,
    keys: KeysPart,
    code: Annotated[str, Form()],
    key: Annotated[str, Form()] = "",
    decision: Annotated[str, Form()] = "deny",
) -> HTMLResponse:
    """Confirm or refuse a device, with a key of the user."""
    api_key = keys.find(key.strip())
    if api_key is None or api_key.is_pass:
        return _form(logins, code, "This key is unknown, expired or revoked.", status=403)
    try:
        logins.decide(code, api_key, allow=decision == "allow")
    except NotFoundError as error:
        return _form(logins, "", str(error), status=404)
    sentence = "The device is logged in." if decision == "allow" else "The device was refused."
    return _page(done=f"{sentence} You can close this page.")


def _form(logins: DeviceLogins, code: str, problem: str, status: int = 200) -> HTMLResponse:
    name = ""
    if code and not problem:
        try:
            name = logins.client_name(code)
        except NotFoundError as error:
            problem, status = str(error), 404
    return _page(status, code=code, problem=problem, device=name)


def _page(status: int = 200, **values: str) -> HTMLResponse:
    from hud.platform.dashboard.rendering import templates  # Loaded with the first page.

    shown = {"code": "", "problem": "", "device": "", "done": "", **values}
    page = templates.get_template("device_login.html").render(shown)
    return HTMLResponse(page, status, {"cache-control": "no-store"})
