"""No request, however odd, makes the server fail: no 5xx and no traceback, on any route and any page.

`corpus.py` holds what is sent on purpose; schemathesis makes the rest of the server's own OpenAPI document.
"""

import logging
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from tests.security import corpus
from tests.security.server import HTML, SAME_SITE, AttackedServer, api_routes, bearer, page_routes
from tests.security.things import make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLOW_OR_OUTWARD = re.compile("/v2/models/(create|add)|/v2/fleet/take")
"""Fetches from the hub, computes for seconds, or waits for work by design."""
LEAST = 10_000
"""Malformed requests that are sent altogether."""
WRITING = ("POST", "PUT", "DELETE")


@pytest.fixture
async def world(tmp_path):
    made = AttackedServer(tmp_path / "home")
    made.ids = await make(made, bearer(made.key()))
    yield made
    made.parts.close()


def targets(world):
    """Yield each route with the credentials that open it."""
    admin, worker = bearer(world.key()), bearer(world.key(scope="fleet"))
    for route in [*api_routes(world.app), *page_routes()]:
        if route.method != "WEBSOCKET" and route.path != "/signout":
            own = worker if route.path.startswith("/v2/fleet/") else admin
            yield route, [*own, *((*HTML, *SAME_SITE) if route.page else ())]


async def withstands(world, method, path, headers, body, caplog):
    answer = await world.ask(method, path, headers, body)
    assert answer.status < 500 or answer.status == 501, (
        method,
        path[:200],
        body and body[:200],
        answer.text,
    )
    assert "Traceback" not in answer.text, path
    faults = [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    assert not faults, (method, path[:200], faults[0].getMessage())


async def test_odd_bodies(world, caplog):
    for route, headers in targets(world):
        if route.method in WRITING:
            for kind, body in corpus.BODIES:
                # What is there stays for the routes that follow.
                path = route.at({} if route.method == "DELETE" else world.ids)
                await withstands(world, route.method, path, [*headers, kind], body, caplog)


async def test_odd_ids(world, caplog):
    for route, headers in targets(world):
        for odd in corpus.IDS if "{" in route.path else ():
            path = re.sub(r"{[^}]*}", lambda _, odd=odd: odd, route.path).replace("?", "")
            body = None if route.method == "GET" else {}
            await withstands(world, route.method, path, headers, body, caplog)


async def test_odd_queries(world, caplog):
    for route, headers in targets(world):
        for query in corpus.QUERIES:
            path = f"{route.at({} if route.method == 'DELETE' else world.ids)}?{query}"
            body = None if route.method == "GET" else {}
            await withstands(world, route.method, path, headers, body, caplog)


async def test_odd_headers_and_methods(world, caplog):
    for route, headers in targets(world):
        for more in corpus.HEADERS:
            path = route.at({} if route.method == "DELETE" else world.ids)
            body = None if route.method == "GET" else {}
            await withstands(world, route.method, path, [*headers, *more], body, caplog)
        for method in corpus.METHODS:
            if method != route.method:
                await withstands(world, method, route.at({}), headers, None, caplog)


def test_what_the_openapi_document_describes(tmp_path):
    world = AttackedServer(tmp_path / "home")
    admin = {"authorization": f"Bearer {world.key()}"}
    worker = {"authorization": f"Bearer {world.key(scope='fleet')}"}
    schema = schemathesis.openapi.from_asgi("/openapi.json", world.app)
    tried = []

    def attack(operation):
        own = worker if operation.path.startswith("/v2/fleet/") else admin

        @settings(
            max_examples=12,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def requests(case):
            answer = case.call(headers={**own})
            assert answer.status_code < 500 or answer.status_code == 501, (
                operation.label,
                answer.status_code,
                answer.text,
            )

        requests()

    for result in schema.get_all_operations():
        operation = result.ok()
        if not SLOW_OR_OUTWARD.fullmatch(operation.path):
            attack(operation)
            tried.append(operation.label)
    assert len(tried) > 60
    world.parts.close()


async def test_the_corpus_alone_makes_ten_thousand(world):
    routes = [route for route, _ in targets(world)]
    writing = sum(route.method in WRITING for route in routes)
    with_ids = sum("{" in route.path for route in routes)
    everywhere = len(corpus.QUERIES) + len(corpus.HEADERS) + len(corpus.METHODS) - 1
    bodies, ids = writing * len(corpus.BODIES), with_ids * len(corpus.IDS)
    assert bodies + ids + len(routes) * everywhere >= LEAST
