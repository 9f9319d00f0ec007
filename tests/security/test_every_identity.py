"""Every route, of the API and of the pages, asked by every kind of caller: each answer is what `rules.py` says."""

import pytest
from tests.security import rules
from tests.security.server import CLOSED, HTML, SAME_SITE, api_routes, page_routes

SCOPES = ("read", "run", "train", "admin")
CALLERS = [
    "nobody",
    "an unknown key",
    "a revoked key",
    "an expired key",
    "an expired pass",
    "the content of one pass with the signature of another",
    "a pass without a signature",
    "the first team's read",
    "the first team's run",
    "the first team's train",
    "the first team's admin",
    "another team's member",
    "another team's admin",
    "a pass of the fleet",
    "the server's own worker",
    "the pass of a rollout",
    "a signed-in reader",
    "a signed-in admin",
    "an ended session",
]
TOLD = ("lacks the scope", "may not read", "carries no key", "expired or revoked", "pass")
"""Reasons with which a WebSocket is closed for lack of permission; one of nobody's things is closed, too."""


def may(caller, rule, page):
    """Return True if a caller with valid credentials may use a route with this rule."""
    if rule == "worker":
        return caller.worker
    if caller.worker or (caller.browser and not page):
        return False
    wanted, inference = {
        "inference": ("run", True),
        "inference read": ("read", True),
    }.get(rule, (rule, False))
    if caller.inference and not inference:
        return False
    return SCOPES.index(caller.scope) >= SCOPES.index(wanted)


def expected(caller, rule, page):
    """Return what an answer must be: `allowed`, 401, 403, or `signin` for a browser without a session."""
    if rule == "open" and not page:
        return "allowed"
    if (
        page
        and not caller.valid
        and not any(name == b"authorization" for name, _ in caller.headers)
    ):
        return "allowed" if rule == "open" else "signin"
    if not caller.valid or (caller.browser and not page):
        return 401
    if rule == "open":
        return 403 if caller.worker or caller.inference else "allowed"
    return "allowed" if may(caller, rule, page) else 403


async def attack(server, caller, route, rule):
    """Ask one route and return what is wrong with the answer; None where it is as expected."""
    headers = [*caller.headers, *((*HTML, *SAME_SITE) if route.page else ())]
    body = None if route.method in ("GET", "WEBSOCKET") else {}
    if (route.method, route.path) == ("POST", "/signin"):
        headers.append((b"content-type", b"application/x-www-form-urlencoded"))
        body = f"key={server.key()}".encode()
    answer = await server.ask(route.method, route.at({}), headers, body)
    wanted = expected(caller, rule, route.page)
    if route.method == "WEBSOCKET":
        refused = any(reason in answer.text for reason in TOLD)
        right = answer.status == CLOSED and refused == (wanted != "allowed")
    elif wanted == "allowed":
        right = answer.status not in (401, 403) and answer.status < 500
    elif wanted == "signin":
        right = answer.status == 303 and answer.headers["location"].startswith("/signin")
    else:
        right = answer.status == wanted
    if not right:
        return f"{caller.name}: {route.method} {route.path}: {answer.status}, not {wanted}: {answer.text[:120]!r}"
    return None


@pytest.mark.slow
def test_every_route_has_a_rule(server):
    found = api_routes(server.app)
    assert {route.name for route in found} == set(rules.API)
    assert {route.name for route in page_routes()} == set(rules.PAGES)
    described = server.app.openapi()["paths"]
    known = {(route.method.lower(), route.path.replace(":path}", "}")) for route in found}
    assert {(method, path) for path, methods in described.items() for method in methods} <= known


@pytest.mark.parametrize("name", CALLERS)
async def test_every_route_by_every_identity(server, name):
    callers = server.callers()
    assert list(callers) == CALLERS
    wrong = []
    for route in [*api_routes(server.app), *page_routes()]:
        if route.path == "/signout":  # It ends the session.
            callers = server.callers()
        rule = (rules.PAGES if route.page else rules.API)[route.name]
        wrong.append(await attack(server, callers[name], route, rule))
        if route.path == "/signout":
            callers = server.callers()
    wrong = list(filter(None, wrong))
    assert not wrong, "\n".join(wrong)
