"""A team's own data is neither shown to another team's admin nor changed by one, on any route and any page."""

from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
from tests.dashboard.recorded import record
from tests.security.server import (
    CLOSED,
    HTML,
    NOBODY_S,
    SAME_SITE,
    AttackedServer,
    api_routes,
    bearer,
    page_routes,
)
from tests.security.things import SECRET, make, post

from hud.trace import new_id
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM

ABSENT = (400, 403, 404, 409, 422)
ALIKE = (
    "DELETE /runtime/sessions/{session_id}",
    "GET /events/baseline/{sitting_id}",
    "GET /baseline/sitting/{sitting_id}/here",
    "POST /playground/worlds/{world_id}/close",
    "GET /traces/{trace_id}",
    "GET /v2/sources/{source}/policy",
    "PUT /v2/sources/{source}/policy",
)
"""Answers that are the same for what is another team's, what is over and what never was; the last one redirects."""
FORMS = "GET /auth/device", "POST /auth/device", "GET /signin", "POST /signin"


def state(server):
    """Return all rows of the first team's, but those that say who was here."""
    rest = {"audit_log", "web_sessions", "device_logins"}
    found = {}
    with server.parts.store.read() as connection:
        for table in tables.metadata.sorted_tables:
            if table.name in rest or "team_id" not in table.c:
                continue
            shown = [column for column in table.c if column.name not in ("last_used_at", "seen_at")]
            rows = connection.execute(sa.select(*shown).where(table.c.team_id == LOCAL_TEAM))
            found[table.name] = sorted(map(repr, rows))
    return found


@pytest.fixture
def world(tmp_path):
    made = AttackedServer(tmp_path / "home")
    yield made
    made.parts.close()


@pytest.mark.slow
async def test_no_route_and_no_page_shows_or_changes_what_is_another_team_s(world):
    mine = bearer(world.key())
    ids = await make(world, mine)
    job = record(world.parts, f"{SECRET}-recorded", {f"{SECRET}-slug": [0.0, 1.0]})
    names = {"reference": [ids["key_id"], ids["node_id"], "shop"], "name": [f"{SECRET}-set"]}
    before = state(world)
    theirs = bearer(world.key(world.others, "admin"))
    bodies = [{}, {"source_model_id": ids["model_id"], "name": "x"}, {"checkpoint_id": "base"}]
    tried = 0
    for route in [*api_routes(world.app), *page_routes()]:
        if f"{route.method} {route.path}" in FORMS or route.path.startswith("/static/"):
            continue
        for more in [{"job_id": job}, *({name: one} for name in names for one in names[name])]:
            if more.keys() - {"job_id"} and f"{{{next(iter(more))}" not in route.path:
                continue
            at = route.at({**ids, **more})
            headers = [*theirs, *((*HTML, *SAME_SITE) if route.page else ())]
            for body in bodies if route.method not in ("GET", "WEBSOCKET") else [None]:
                answer = await world.ask(route.method, at, headers, body)
                tried += 1
                # A refusal may name what was asked for.
                said = answer.text.replace(f"{SECRET}-set", "") if "-set" in at else answer.text
                assert SECRET not in said, (route, at, answer.text)
                if "{" in route.path and route.name not in ALIKE:
                    assert answer.status in (*ABSENT, CLOSED), (route, at, answer.status)
    assert tried > 300
    assert state(world) == before


async def test_bodies_that_name_another_team_s_things_find_nothing(world):
    mine, theirs = bearer(world.key()), bearer(world.key(world.others))
    ids = await make(world, mine)
    trace = new_id()
    span = {"traceId": ids["trace_id"], "spanId": "1" * 16, "name": "chat"}
    tried = [
        ("/v2/models/fork", {"source_model_id": ids["model_id"], "name": "stolen"}),
        ("/v2/models/fork", {"source_model_id": f"{SECRET}-model", "name": "stolen"}),
        ("/v2/training-runs", {"model": ids["model_id"], "config": {}, "state": {}}),
        (f"/v2/trace/job/{ids['job_id']}/enter", {"name": "mine now"}),
        (f"/v2/trace/{ids['trace_id']}/exit", {"status": "completed", "reward": 1.0}),
        ("/v2/tasks/upload", {"taskset_id": ids["taskset_id"], "tasks": []}),
        ("/v2/builds/trigger", {"build_id": ids["build_id"], "name": "x"}),
        (f"/trace/{ids['trace_id']}/telemetry-upload", {"telemetry": []}),
        ("/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}),
        ("/v1/chat/completions", {"model": f"{SECRET}-model", "messages": []}),
        ("/v1/chat/completions", {"model": ids["model_id"], "messages": []}),
        ("/runtime/sessions", {"environment": "shop"}),
    ]
    for path, body in tried:
        answer = await world.ask("POST", path, theirs, body)
        assert answer.status in (400, 404), (path, answer.status, answer.text)
    entered = {"job_id": ids["job_id"], "task_slug": "x"}
    await world.ask("POST", f"/v2/trace/{trace}/enter", theirs, entered)
    runs = (await world.ask("GET", f"/v2/jobs/{ids['job_id']}/traces", mine)).json()
    assert [run["id"] for run in runs["items"]] == [ids["trace_id"]]


@pytest.mark.slow
async def test_forms_that_name_another_team_s_things_find_nothing(world):
    ids = await make(world, bearer(world.key()))
    theirs = [*bearer(world.key(world.others)), *SAME_SITE, *HTML]
    before = state(world)
    model, tasks = ids["model_id"], {"taskset": ids["taskset_id"], "tasks": ids["taskset_id"]}
    forms = {
        "/jobs": {"model": model, "checkpoint": "base", **tasks},
        "/train": {"model": model, "start": "base", **tasks},
        f"/models/{model}/evaluate": {"checkpoint": "base", **tasks},
        f"/models/{model}/fork": {"name": "stolen", "checkpoint": "base"},
        f"/models/{model}/head": {"checkpoint": "base"},
        f"/tasksets/{ids['taskset_id']}/remove": {"slug": f"{SECRET}-row"},
        f"/tasksets/{ids['taskset_id']}/rows": {"slug": "x", "environment": "shop", "task": "buy"},
        f"/tasksets/{ids['taskset_id']}/imports": {"text": "[]"},
        f"/baseline/{ids['taskset_id']}/begin": {"slug": f"{SECRET}-row"},
        f"/people/keys/{ids['key_id']}/revoke": {},
        f"/fleet/nodes/{ids['node_id']}/drain": {},
    }
    kind = (b"content-type", b"application/x-www-form-urlencoded")
    for path, form in forms.items():
        answer = await world.ask("POST", path, [*theirs, kind], urlencode(form).encode())
        assert answer.status in ABSENT, (path, answer.status)
        assert SECRET not in answer.text.replace(f"{SECRET}-row", ""), path
    for body in ({"environment": "shop"}, {"taskset": ids["taskset_id"], "task": f"{SECRET}-row"}):
        answer = await world.ask("POST", "/playground/worlds", theirs, body)
        assert answer.status in ABSENT, answer.text
    assert state(world) == before


async def test_the_same_names_are_used_by_several_teams(world):
    for team in (LOCAL_TEAM, world.others):
        headers = bearer(world.key(team))
        rows = {"taskset_name": "ours", "tasks": []}
        await post(world, "/v2/tasks/upload", rows, headers)
        listed = (await world.ask("GET", "/v2/tasksets", headers)).json()
        assert sum(one["name"] == "ours" for one in listed["items"]) == 1


async def test_the_pass_of_a_rollout_opens_inference_alone(world):
    agent = world.callers()["the pass of a rollout"].headers
    for path in ("/v2/models/a:b/head", "/v1/models/a:generateContent/train/optim-step"):
        assert (await world.ask("PUT", path, agent, {})).status == 403, path
    asked = {"model": NOBODY_S, "messages": [{"role": "user", "content": "hello"}]}
    answer = await world.ask("POST", "/v1/chat/completions", agent, asked)
    assert answer.status == 404, answer.text
