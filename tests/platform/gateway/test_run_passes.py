"""Run passes at servers with keys: who opens and ends them, what they open, and several servers on one store."""

import asyncio
import re
import threading
import time
from datetime import UTC, datetime

import httpx
import pytest
import sqlalchemy as sa
from tests.platform.gateway.gateway_server import SIZES, TEXTS, ScriptedEngine, serving

from hud.trace import new_id
from hud.trace.sampled.call_samples import expand_samples
from hud_platform.access import Identity
from hud_platform.access.middleware import is_open
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.gateway.chat_formats import format_of
from hud_platform.gateway.run_passes import call_store, run_calls
from hud_platform.gateway.run_passes.call_store import CallStore, Need
from hud_platform.process.config import PlatformConfig
from hud_platform.routes.gateway import Described
from hud_platform.store import tables

HELLO = [{"role": "user", "content": "hello"}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 3}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def make_app(home, *texts, **options):
    """Return an application on a store, whose model `tiny` says the texts in turn."""
    app = create_app(PlatformConfig(home, keys=True))
    parts = app.state.parts
    registry = parts.registry.of(Teams(parts.store).default().id)
    record = next(iter(registry.models()), None) or registry.create("tiny", TEXTS, sizes=SIZES)
    tokenizer = format_of(record.folder).chat.tokenizer
    parts.__dict__["engine"] = ScriptedEngine(tokenizer, *(texts or ("some words",)), **options)
    return app


@pytest.fixture
def app(tmp_path):
    app = make_app(tmp_path / "home")
    yield app
    app.state.parts.close()


@pytest.fixture
def key(app):
    return mint(app)


def mint(app, team=None, scopes=("run",)):
    parts = app.state.parts
    team_id = (Teams(parts.store).default() if team is None else team).id
    return parts.keys.mint("k", team_id, scopes=scopes)[1]


def client_of(app, key):
    transport = httpx.ASGITransport(app=app)
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers)


async def post(app, key, path, **body):
    async with client_of(app, key) as client:
        return await client.post(path, json=body)


async def open_pass(app, key, **body):
    answer = await post(
        app, key, "/v1/run-passes", **{"trace_id": new_id(), "model": "tiny", **body}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def end(app, key, opened):
    return await post(app, key, f"/v1/run-passes/{opened['id']}/end", token=opened["token"])


async def chat(app, key, messages=HELLO, **body):
    return await post(app, key, "/v1/chat/completions", model="x", messages=messages, **body)


async def test_a_rollouts_pass_opens_run_passes_and_a_run_pass_none(app):
    parts = app.state.parts
    team = Teams(parts.store).default().id
    who = Identity(team_id=team, scopes=frozenset({"run"}), inference_only=True)
    opened = await open_pass(app, parts.passes.make(who, 60))
    assert (await chat(app, opened["key"])).status_code == 200
    body = {"trace_id": new_id(), "model": "tiny"}
    refused = await post(app, opened["key"], "/v1/run-passes", **body)
    assert (refused.status_code, "model calls of its run alone" in refused.text) == (403, True)


async def test_the_program_cannot_end_its_run(app, key):
    opened = await open_pass(app, key)
    assert (await end(app, opened["key"], opened)).status_code == 403
    # Another key of the team, without the token of this pass.
    other = await open_pass(app, key)
    path = f"/v1/run-passes/{opened['id']}/end"
    assert (await post(app, key, path, token=other["token"])).status_code == 404
    assert (await chat(app, opened["key"])).status_code == 200
    assert (await end(app, key, opened)).status_code == 200
    assert (await chat(app, opened["key"])).status_code == 409


async def test_another_teams_runs_and_passes_are_out_of_reach(app, key):
    theirs = mint(app, Teams(app.state.parts.store).find_or_create("others"))
    trace = new_id()
    async with client_of(app, theirs) as client:
        await client.post(f"/v2/trace/{trace}/enter", json={})
    body = {"trace_id": trace, "model": "tiny"}
    assert (await post(app, key, "/v1/run-passes", **body)).status_code == 404
    opened = await open_pass(app, key)
    assert (await end(app, theirs, opened)).status_code == 404


async def test_reading_needs_more_than_a_key_that_reads(app):
    body = {"trace_id": new_id(), "model": "tiny"}
    reader = mint(app, scopes=("read",))
    assert (await post(app, reader, "/v1/run-passes", **body)).status_code == 403


async def test_a_pass_expires(app, key):
    opened = await open_pass(app, key, seconds=0.2)
    await asyncio.sleep(0.3)
    assert (await chat(app, opened["key"])).status_code == 401
    assert (await end(app, key, opened)).status_code == 200


async def test_a_forged_or_changed_pass_opens_nothing(app, key):
    opened = await open_pass(app, key)
    head, _, tail = opened["key"].partition(".")
    for forged in (f"{head}x.{tail}", f"{head}.{tail[::-1]}", f"{head}.", head):
        assert (await chat(app, forged)).status_code == 401


async def test_a_revoked_key_takes_its_run_passes_with_it(app, key):
    parts = app.state.parts
    opened = await open_pass(app, key)
    sampling = asyncio.Event()

    async def forever():
        sampling.set()
        await asyncio.sleep(60)

    parts.engine.then = forever
    playing = asyncio.create_task(chat(app, opened["key"]))
    await sampling.wait()
    await asyncio.to_thread(parts.keys.revoke, Teams(parts.store).default().id, "k")
    assert (await asyncio.wait_for(playing, 10)).status_code == 409
    assert (await chat(app, opened["key"])).status_code == 401
    assert (parts.engine.closed, len(parts.engine.asked)) == (1, 1)


async def test_sampling_that_cannot_be_trained_on_is_refused_at_the_opening(app, key):
    body = {"trace_id": new_id(), "model": "tiny", "sampling": {"top_p": 0.5}}
    refused = await post(app, key, "/v1/run-passes", **body)
    assert (refused.status_code, "trainable" in refused.text) == (400, True)
    opened = await open_pass(app, key, trainable=False, sampling={"top_p": 0.5})
    await chat(app, opened["key"])
    ended = (await end(app, key, opened)).json()
    assert "sample" not in ended["steps"][0]


@pytest.fixture
def two(tmp_path):
    """Two servers on one store."""
    apps = [make_app(tmp_path / "home", CALL), make_app(tmp_path / "home", "some words")]
    yield apps
    for each in apps:
        each.state.parts.close()


async def test_calls_of_a_run_may_go_to_any_server_of_a_store(two):
    first, second = two
    key = mint(first)
    opened = await open_pass(first, key, limits={"calls": 3})
    said = (await chat(first, opened["key"], tools=TOOLS)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "apples"}
    later = [*HELLO, said, result]
    assert (await chat(second, opened["key"], later, tools=TOOLS)).status_code == 200
    assert (await chat(first, opened["key"], later, tools=TOOLS)).status_code == 200
    assert (await chat(second, opened["key"], later, tools=TOOLS)).status_code == 403
    ended = (await end(second, key, opened)).json()
    steps = list(expand_samples(ended["steps"]))
    assert [step["source"] for step in steps] == ["agent", "tool", "agent", "agent"]
    assert all(step["sample"]["prompt_token_ids"] for step in steps if step["source"] == "agent")
    assert ended["refusal"]["kind"] == "limit"
    assert (await chat(first, opened["key"])).status_code == 409
    assert (await end(first, key, opened)).json() == ended


@pytest.mark.slow
async def test_conversations_in_memory_have_a_size_together(tmp_path, monkeypatch):
    """4,096 conversations were kept whatever they held: a team's answers of 64 MB each filled the server."""
    app = make_app(tmp_path / "home", "word " * 10_000)
    key = mint(app)
    kept = app.state.parts.gateway.runs._conversations
    passes = [await open_pass(app, key) for _ in range(6)]
    assert (await chat(app, passes[0]["key"])).status_code == 200
    size = kept[passes[0]["id"]][0].turns.size
    assert size > 100_000
    monkeypatch.setattr(run_calls, "MOST_CONVERSATION_BYTES", 3 * size)
    for opened in passes[1:]:
        assert (await chat(app, opened["key"])).status_code == 200
    assert list(kept) == [opened["id"] for opened in passes[3:]]
    answer = {"role": "assistant", "content": "word " * 10_000}
    again = await chat(app, passes[0]["key"], [*HELLO, answer, *HELLO])
    assert again.status_code == 200
    steps = (await end(app, key, passes[0])).json()["steps"]
    assert len(steps) == 2, "a conversation that was dropped is read again"
    assert sum(app.state.parts.gateway.runs._sizes.values()) == app.state.parts.gateway.runs._size
    app.state.parts.close()


async def test_the_end_at_one_server_cancels_what_another_samples(two):
    first, second = two
    sampling = asyncio.Event()

    async def forever():
        sampling.set()
        await asyncio.sleep(60)

    first.state.parts.engine.then = forever
    key = mint(first)
    opened = await open_pass(first, key)
    playing = asyncio.create_task(chat(first, opened["key"], stream=True))
    await sampling.wait()
    ended = (await end(second, key, opened)).json()
    assert (ended["refusal"], ended["metrics"]["cancelled"]) == (None, 1)
    assert "has ended" in (await playing).text


async def test_what_a_run_recorded_is_in_its_trace_although_its_process_died(app, key):
    reader = mint(app, scopes=("read",))
    trace = new_id()
    opened = await open_pass(app, key, trace_id=trace)
    async with client_of(app, key) as client:
        await client.post(f"/v2/trace/{trace}/enter", json={})
    await chat(app, opened["key"])
    async with client_of(app, reader) as client:
        steps = (await client.get(f"/v2/trace/{trace}/full")).json()["trace"]["steps"]
    assert [(step["source"], step["step_id"]) for step in steps] == [("agent", 1)]
    assert steps[0]["sample"]["output_token_ids"] == app.state.parts.engine.turns[0]


async def test_calls_leave_their_tables_when_their_run_is_recorded(app, key):
    parts = app.state.parts
    trace = new_id()
    opened = await open_pass(app, key, trace_id=trace)
    await chat(app, opened["key"])
    await end(app, key, opened)
    async with client_of(app, key) as client:
        await client.post(f"/v2/trace/{trace}/exit", json={"status": "completed"})
    parts.gateway.runs.store.clean()
    for table in (tables.run_passes, tables.run_calls):
        assert parts.store.rows(sa.select(table)) == []
    assert (await chat(app, opened["key"])).status_code == 409


async def test_calls_of_a_process_that_died_become_steps_when_their_pass_expires(app, key):
    parts = app.state.parts
    trace = new_id()
    opened = await open_pass(app, key, trace_id=trace)
    await chat(app, opened["key"])
    await chat(app, opened["key"], [*HELLO, *HELLO])
    with parts.store.begin() as connection:
        long_ago = datetime(2020, 1, 1, tzinfo=UTC)
        connection.execute(sa.update(tables.run_passes).values(expires_at=long_ago))
    parts.gateway.runs.store.clean()
    assert parts.store.rows(sa.select(tables.run_calls)) == []
    async with client_of(app, mint(app, scopes=("read",))) as client:
        steps = (await client.get(f"/v2/trace/{trace}/full")).json()["trace"]["steps"]
    assert [step["step_id"] for step in steps] == [1, 2]
    assert all(step["sample"]["prompt_token_ids"] for step in steps)


def test_many_calls_at_once_over_http_are_numbered_and_recorded(app, key):
    with serving(app) as url, httpx.Client(base_url=url) as client:
        headers = {"authorization": f"Bearer {key}"}
        body = {"trace_id": new_id(), "model": "tiny"}
        opened = client.post("/v1/run-passes", json=body, headers=headers).json()
        headers["authorization"] = f"Bearer {opened['key']}"
        request = {"model": "x", "messages": HELLO}

        def ask():
            httpx.post(f"{url}/v1/chat/completions", json=request, headers=headers)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        headers["authorization"] = f"Bearer {key}"
        path = f"/v1/run-passes/{opened['id']}/end"
        ended = client.post(path, json={"token": opened["token"]}, headers=headers).json()
    assert [step["extra"]["model_call"]["number"] for step in ended["steps"]] == [*range(1, 13)]


async def test_no_route_but_those_of_model_calls_is_open(app, key):
    opened = await open_pass(app, key)
    answered = {}
    async with client_of(app, opened["key"]) as client:
        for route in app.router.routes:
            path = getattr(route, "path", "").replace(":path", "")
            if isinstance(getattr(route, "endpoint", None), Described) or is_open(path):
                continue
            for method in getattr(route, "methods", None) or ():
                place = re.sub(r"\{[^}]*\}", "tiny", path)
                answer = await client.request(method, place, json={})
                answered[f"{method} {path}"] = answer.status_code
    assert len(answered) > 60
    assert {place: status for place, status in answered.items() if status != 403} == {}


async def test_limits_of_the_openers_key_hold_and_their_refusals_are_noted(app):
    parts = app.state.parts
    team = Teams(parts.store).default().id
    limited = parts.keys.mint("few", team, scopes=("run",), requests_per_minute=3)[1]
    opened = await open_pass(app, limited)
    statuses = [
        (await chat(app, opened["key"], [{"role": "user", "content": str(number)}])).status_code
        for number in range(3)
    ]
    assert statuses == [200, 200, 429]
    rows = parts.store.rows(sa.select(tables.run_calls.c.status).order_by(sa.text("number")))
    assert [row.status for row in rows] == ["answered", "answered", "refused"]


def sampled_and_refused(answers):
    """Return how many tokens each answer has, and the refusals."""
    answered = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code != 200]
    return [answer.json()["usage"]["completion_tokens"] for answer in answered], refused


@pytest.mark.parametrize("stated", [{}, {"max_tokens": 4}])
async def test_calls_at_once_sample_no_more_than_the_runs_tokens(app, key, stated):
    """Each got all that were left when it began."""
    opened = await open_pass(app, key, limits={"tokens": 6})
    answers = await asyncio.gather(*(chat(app, opened["key"], **stated) for _ in range(8)))
    sampled, refused = sampled_and_refused(answers)
    assert sum(sampled) == 6
    assert len(refused) + len(sampled) == 8
    assert all("may sample 6 tokens" in answer.text for answer in refused)
    assert (await end(app, key, opened)).json()["refusal"]["kind"] == "limit"


@pytest.mark.parametrize("stated", [{}, {"max_tokens": 4}])
async def test_calls_at_several_servers_sample_no_more_than_the_runs_tokens(
    app, key, stated, tmp_path
):
    """Each server reserved its own calls alone."""
    other = make_app(tmp_path / "home")
    try:
        opened = await open_pass(app, key, limits={"tokens": 6})
        calls = [chat(place, opened["key"], **stated) for place in (app, other) * 4]
        answers = await asyncio.gather(*calls)
    finally:
        other.state.parts.close()
    sampled, refused = sampled_and_refused(answers)
    assert sum(sampled) == 6
    assert all("may sample 6 tokens" in answer.text for answer in refused)
    rows = app.state.parts.store.rows(sa.select(tables.run_reservations))
    assert rows == []


async def test_what_a_server_reserved_that_died_is_free_after_a_while(app, key, monkeypatch):
    opened = await open_pass(app, key, limits={"tokens": 6})
    store = CallStore(app.state.parts.store)
    monkeypatch.setattr(call_store, "RESERVED_SECONDS", 1.0)
    dead = Need(6, None, None, 1, 0.0, lambda answers: 0.0)
    assert store.reserve(opened["id"], 99, dead) == 6
    began = time.monotonic()
    answer = await chat(app, opened["key"])
    assert answer.status_code == 200
    assert time.monotonic() - began > 0.8


async def test_a_call_in_progress_keeps_what_it_reserved(app, key, monkeypatch):
    opened = await open_pass(app, key, limits={"tokens": 6})
    monkeypatch.setattr(call_store, "RESERVED_SECONDS", 2.5)
    over = asyncio.Event()
    app.state.parts.__dict__["engine"].then = over.wait
    calls = asyncio.gather(*(chat(app, opened["key"]) for _ in range(2)))
    await asyncio.sleep(5)
    assert len(app.state.parts.__dict__["engine"].asked) == 1
    over.set()
    assert sorted(answer.status_code for answer in await calls)[0] == 200
