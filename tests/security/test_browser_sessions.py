"""Sessions of browsers: not fixed beforehand, not used across sites, not used for the API, and ended in time."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.security.server import HTML, SAME_SITE, api_routes, bearer, page_routes

from hud_platform.store import tables

FORM = (b"content-type", b"application/x-www-form-urlencoded")
SITES = {
    "another site": [(b"sec-fetch-site", b"cross-site")],
    "a neighbour": [(b"sec-fetch-site", b"same-site")],
    "an old browser's other site": [(b"origin", b"https://evil.example")],
    "a sandbox": [(b"origin", b"null")],
    "no browser's": [],
    "another port": [(b"origin", b"http://platform:81")],
}


def cookie_of(answer):
    return answer.headers["set-cookie"].partition(";")[0].partition("=")[2]


async def signed_in(server, brought=()):
    body = f"key={server.key(scope='read')}".encode()
    answer = await server.ask("POST", "/signin", [*SAME_SITE, *HTML, FORM, *brought], body)
    assert answer.status == 303
    return cookie_of(answer)


async def opens(server, session, path="/jobs"):
    cookie = (b"cookie", f"hud_session={session}".encode())
    return (await server.ask("GET", path, [cookie, *HTML])).status


async def test_a_session_is_never_one_that_was_brought(server):
    chosen = "c" * 43
    made = await signed_in(server, [(b"cookie", f"hud_session={chosen}".encode())])
    again = await signed_in(server, [(b"cookie", f"hud_session={made}".encode())])
    assert len({chosen, made, again}) == 3
    assert await opens(server, chosen) == 303
    assert await opens(server, made) == 200


@pytest.mark.parametrize("site", SITES)
async def test_no_page_acts_on_what_another_site_posts(server, site):
    admin = server.callers()["a signed-in admin"]
    tried = 0
    for route in page_routes():
        if route.method == "POST":
            headers = [*admin.headers, *HTML, FORM, *SITES[site]]
            answer = await server.ask("POST", route.at({}), headers, b"key=x&name=x")
            assert answer.status == 403, (route, answer.status)
            assert "another site" in answer.text
            tried += 1
    assert tried > 25


@pytest.mark.slow
async def test_no_other_site_reads_an_answer(server):
    for route in [*api_routes(server.app), *page_routes()]:
        if route.method in ("GET", "POST"):
            headers = [*bearer(server.key()), (b"origin", b"https://evil.example")]
            answer = await server.ask(route.method, route.at({}), headers)
            assert not [name for name in answer.headers if name.startswith("access-control-")], (
                route
            )
    asked = [(b"origin", b"https://evil.example"), (b"access-control-request-method", b"POST")]
    answer = await server.ask("OPTIONS", "/v2/keys", [*bearer(server.key()), *asked])
    assert "access-control-allow-origin" not in answer.headers


async def test_a_session_ends_in_time_and_with_its_key(server):
    made, other = await signed_in(server), await signed_in(server)
    sessions, past = tables.web_sessions, datetime.now(UTC) - timedelta(seconds=1)
    assert await opens(server, made) == await opens(server, other) == 200
    server.parts.store.write(sa.update(sessions).values(expires_at=past))
    assert await opens(server, made) == await opens(server, other) == 303


async def test_a_cookie_s_secret_is_not_stored(server):
    made = await signed_in(server)
    with server.parts.store.read() as connection:
        rows = connection.execute(sa.select(tables.web_sessions)).all()
    assert rows
    assert made not in str(rows)
