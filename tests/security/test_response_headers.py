"""Every response has the security headers, whoever gets it and whatever comes of the request."""

import re

import pytest
from tests.security.server import HTML, SAME_SITE, api_routes, bearer, page_routes

from hud_platform.access.response_headers import HEADERS

KIND = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", re.IGNORECASE)
"""Script and style that a page would hold itself; the policy blocks it."""


@pytest.mark.slow
async def test_every_response_has_the_strict_policy(server):
    policy = dict(HEADERS)[b"content-security-policy"].decode()
    assert "unsafe" not in policy
    assert "http" not in policy
    for headers in ([], bearer(server.key())):
        for route in [*api_routes(server.app), *page_routes()]:
            if route.method == "WEBSOCKET":
                continue
            sent = [*headers, *((*HTML, *SAME_SITE) if route.page else ())]
            answer = await server.ask(route.method, route.at({}), sent)
            for name, value in HEADERS:
                assert answer.headers[name.decode()] == value.decode(), (route, name)


@pytest.mark.slow
async def test_pages_hold_no_script_and_no_style_of_their_own(server):
    sent = [*bearer(server.key()), *HTML, *SAME_SITE]
    seen = 0
    for route in [*api_routes(server.app), *page_routes()]:
        if route.method != "GET" or route.path.startswith("/static"):
            continue
        answer = await server.ask("GET", route.at({}), sent)
        if answer.headers.get("content-type", "").startswith("text/html"):
            assert KIND.search(answer.text) is None, (route, KIND.search(answer.text))
            assert not re.search(r'(?:src|href)="(?:https?:)?//', answer.text), route
            seen += 1
    assert seen > 30


async def test_refusals_of_the_server_have_them_too(server):
    large = [(b"transfer-encoding", b"chunked"), (b"content-type", b"application/json")]
    for path, headers, body in (
        ("/auth/device/code", large, b"x" * 100_000),
        ("/v2/jobs", bearer("hud_nothing"), None),
        ("/nowhere", bearer(server.key()), None),
        ("/v2/ingest", [*bearer(server.key()), (b"content-type", b"application/json")], b"\xff"),
    ):
        answer = await server.ask("POST", path, headers, body)
        assert answer.status >= 400, path
        assert set(dict(HEADERS)) <= {name.encode() for name in answer.headers}, path
