"""Signing in with a key, which starts a browser session, and signing out."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request, Response

from hud_dashboard.page import see
from hud_dashboard.rendering import page
from hud_platform.access.audit_log import AuditLog
from hud_platform.access.web_sessions import COOKIE, LIFETIME, WebSessions
from hud_platform.dependencies import ConfigPart, KeysPart, StorePart, part

router = APIRouter()
WebSessionsPart = Annotated[WebSessions, part(lambda parts: parts.web_sessions)]


@router.get("/signin")
def signin_page(request: Request, config: ConfigPart, next: str = "/") -> Response:
    """The sign-in form; a redirect if no key is needed."""
    if not config.keys:
        return see(inner(next))
    return page(request, "signin.html", {"next": inner(next), "problem": None})


@router.post("/signin")
def signin(
    request: Request,
    store: StorePart,
    keys: KeysPart,
    web_sessions: WebSessionsPart,
    key: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",
) -> Response:
    """Start a session."""
    api_key = keys.find(key.strip())
    if api_key is None or api_key.is_pass:
        data = {"next": inner(next), "problem": "This key is unknown, expired or revoked."}
        return page(request, "signin.html", data, status=403)
    AuditLog(store, api_key.identity).note("signed in", api_key.name, by="a browser")
    answer = see(inner(next))
    answer.set_cookie(
        COOKIE,
        web_sessions.begin(api_key),
        max_age=int(LIFETIME.total_seconds()),
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/signout")
def signout(request: Request, web_sessions: WebSessionsPart) -> Response:
    """End the session; its cookie becomes invalid, including copies."""
    web_sessions.end(request.cookies.get(COOKIE, ""))
    answer = see("/signin")
    answer.delete_cookie(COOKIE)
    return answer


def inner(place: str) -> str:
    """Return a path of the dashboard to redirect to; an address of another site becomes the first page."""
    parts = urlsplit(place)
    outer = parts.scheme or parts.netloc or not place.startswith("/") or "\\" in place
    return "/" if outer or place.startswith("//") or not place.isprintable() else place
