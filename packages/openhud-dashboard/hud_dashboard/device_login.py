"""Page of device login: a user confirms in the browser the code that a device displays.

GET, POST /auth/device
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form
from fastapi.responses import HTMLResponse

from hud.errors import NotFoundError
from hud_platform.access.device_login import DeviceLogins
from hud_platform.dependencies import KeysPart
from hud_platform.routes.login import Logins, limited

router = APIRouter(prefix="/auth/device", tags=["keys"])

CONFIRMED_PER_MINUTE = 30
_LIMITED = [limited("confirm", CONFIRMED_PER_MINUTE)]


@router.get("", response_class=HTMLResponse, dependencies=_LIMITED)
def confirm_page(logins: Logins, code: str = "") -> HTMLResponse:
    """Page for confirming a device."""
    return _form(logins, code, "")


@router.post("", response_class=HTMLResponse, dependencies=_LIMITED)
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
    from hud_dashboard.rendering import templates  # Loaded with the first page.

    shown = {"code": "", "problem": "", "device": "", "done": "", **values}
    page = templates.get_template("device_login.html").render(shown)
    return HTMLResponse(page, status, {"cache-control": "no-store"})
