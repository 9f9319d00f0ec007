"""What one team stores on the server is bounded: metadata, sessions, and listings of many checkpoints."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import sqlalchemy as sa

from hud.errors import HudError
from hud.trace import new_id
from hud_integrations.tinker.service import checkpoint_paths, client_sessions, sampling_clients
from hud_integrations.tinker.service.client_sessions import ClientSessions
from hud_integrations.tinker.service.wire.requests import MOST_METADATA
from hud_platform.access import Identity
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.routes import checkpoints
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM

SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
MANY = 2000


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).create("m", ["red green blue"], sizes=SIZES)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud", timeout=60) as http:
        http.parts, http.app = parts, app
        yield http
    await asyncio.to_thread(parts.close)


def save_many(parts, count):
    """Add checkpoints as a training would, each with a name of Tinker's and many metrics."""
    model, now, parent = parts.registry.of(LOCAL_TEAM).model("m"), datetime.now(UTC), None
    rows = []
    for step in range(count):
        save = {"time": now.isoformat(), "user_metadata": None, "size": 7}
        metrics = {f"metric_{number}:mean": 0.5 * number for number in range(40)}
        row = {
            "id": new_id(),
            "model_id": model.id,
            "parent_id": parent,
            "step": step + 1,
            "name": f"step-{step}",
            "folder": str(parts.config.home / "nothing"),
            "created_at": now + timedelta(seconds=step),
            "metrics": {**metrics, "client_names": {f"weights/{step}": save}},
        }
        rows.append(row)
        parent = row["id"]
    with parts.store.begin() as connection:
        connection.execute(sa.insert(tables.checkpoints), rows)
    return model, [row["id"] for row in rows]


async def test_the_reason_of_a_session_s_end_and_its_numbers_are_bounded(api):
    """Sessions of a team are remembered after their end: a reason took as much memory as a body may have."""
    session = (await api.post("/api/v1/create_session", json={})).json()["session_id"]
    made = {"session_id": session, "sampling_session_seq_id": 10**4000, "base_model": "m"}
    assert (await api.post("/api/v1/create_sampling_session", json=made)).status_code in (400, 422)
    path = f"/api/v1/sessions/{session}/finish"
    ended = await api.post(path, json={"reason": {"type": "x" * 5_000_000}})
    assert ended.status_code == 204
    remembered = api.parts.service("tinker").sessions.get(session, LOCAL_TEAM)
    assert remembered.finished == "x" * client_sessions.LONGEST_REASON


@pytest.mark.parametrize(
    "body", [{"user_metadata": {"a": "x" * MOST_METADATA}}, {"display_name": "x" * 1001}]
)
async def test_metadata_of_a_session_has_a_size(api, body):
    answer = await api.post("/api/v1/create_session", json=body)
    assert answer.status_code == 422
    assert (await api.post("/api/v1/create_session", json={"user_metadata": {"a": "b"}})).is_success


def test_a_team_has_so_many_sessions_and_takes_no_other_s_place(monkeypatch):
    monkeypatch.setattr(client_sessions, "MOST_SESSIONS", 3)
    sessions, team = ClientSessions(), Identity("a" * 32, frozenset(), user_id="u")
    other = sessions.create(Identity("b" * 32, frozenset()))
    made = [sessions.create(team) for _ in range(3)]
    with pytest.raises(HudError, match="3 open sessions") as refused:
        sessions.create(team)
    assert refused.value.status == 429
    made[1].released = True
    sessions.create(team)
    assert made[1] not in sessions.of_team(team.team_id)
    assert sessions.of_team("b" * 32) == [other]
    for number in range(client_sessions.MOST_SAMPLERS + 5):
        other.add_sampler(str(number))
    assert len(other.samplers) == client_sessions.MOST_SAMPLERS
    assert other.samplers[-1] == str(client_sessions.MOST_SAMPLERS + 4)


@pytest.mark.slow
async def test_many_checkpoints_are_listed_in_pages_and_page_by_page(api, monkeypatch):
    model, ids = save_many(api.parts, MANY)
    path = f"/v2/models/{model.id}/checkpoints"
    assert [row["id"] for row in (await api.get(path)).json()] == ids
    page = (await api.get(path, params={"limit": 3, "offset": 1998})).json()
    assert [row["id"] for row in page] == ids[1998:]
    assert (await api.get(path, params={"limit": 3, "offset": MANY})).json() == []
    monkeypatch.setattr(checkpoints, "CHECKPOINTS_AT_ONCE", 7)
    assert [row["id"] for row in (await api.get(path)).json()] == ids


@pytest.mark.slow
async def test_many_checkpoints_are_sent_in_few_pieces(api):
    model, ids = save_many(api.parts, MANY)
    app, pieces = api.app, []

    async def counted(scope, receive, send):
        async def sent(message):
            pieces.append(len(message.get("body", b"")))
            await send(message)

        await app(scope, receive, sent)

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(counted), base_url="http://h"
    ) as http:
        listed = (await http.get(f"/v2/models/{model.id}/checkpoints")).json()
    assert len(listed) == len(ids)
    assert len(pieces) <= MANY / checkpoints.CHECKPOINTS_AT_ONCE + 4  # Start, pages, bracket, end.


@pytest.mark.slow
async def test_saves_of_a_run_are_listed_in_pages(api):
    model, _ = save_many(api.parts, MANY)
    path = f"/api/v1/training_runs/{model.id}/checkpoints"
    listed = (await api.get(path)).json()
    assert listed["cursor"] == {"offset": 0, "limit": 1000, "total_count": MANY}
    names = [save["checkpoint_id"] for save in listed["checkpoints"]]
    assert names == [f"weights/{step}" for step in range(1000, MANY)]
    assert listed["checkpoints"][0]["size_bytes"] == 7
    earlier = (await api.get(path, params={"offset": 1000, "limit": 2})).json()["checkpoints"]
    assert [save["checkpoint_id"] for save in earlier] == ["weights/998", "weights/999"]
    whole = (await api.get("/api/v1/checkpoints", params={"limit": 2})).json()
    assert (len(whole["checkpoints"]), whole["cursor"]["total_count"]) == (2, MANY)


async def test_listings_read_no_more_saves_than_they_show(api, monkeypatch):
    model, ids = save_many(api.parts, 60)
    registry, expired = api.parts.registry.of(LOCAL_TEAM), "2020-01-01T00:00:00+00:00"
    save = {"time": "2020-01-01T00:00:00+00:00", "user_metadata": None, "size": 7}
    names = {"sampler_weights/a": save, "weights/old": {**save, "expires_at": expired}}
    registry.tree.annotate(ids[3], {"client_names": names})
    with api.parts.store.begin() as connection:
        row = {"id": new_id(), "model_id": model.id, "step": 99, "name": "unnamed", "metrics": {}}
        connection.execute(
            sa.insert(tables.checkpoints).values(created_at=datetime.now(UTC), **row)
        )
    read = []
    made = checkpoint_paths.Save.__init__

    def counted(self, *arguments):
        read.append(arguments)
        made(self, *arguments)

    monkeypatch.setattr(checkpoint_paths.Save, "__init__", counted)
    runs = f"/api/v1/training_runs/{model.id}"
    page = (await api.get(f"{runs}/checkpoints", params={"limit": 2})).json()
    names = [save["checkpoint_id"] for save in page["checkpoints"]]
    assert (names, page["cursor"]["total_count"]) == (["weights/58", "weights/59"], 60)
    whole = (await api.get("/api/v1/checkpoints", params={"limit": 2})).json()
    assert (len(whole["checkpoints"]), whole["cursor"]["total_count"]) == (2, 60)
    run = (await api.get(runs)).json()
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/59"
    assert run["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/a"
    assert len(read) == 6
    checkpoint_paths.remove_expired(registry, model)
    assert list(registry.tree.get(ids[3]).metrics["client_names"]) == ["sampler_weights/a"]


async def sampled(api, sampler, number, **more):
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [7, 8]}]}
    body = {"sampling_session_id": sampler, "seq_id": number, "prompt": prompt, **more}
    body["sampling_params"] = {"max_tokens": 8, "stop": []}
    identifier = {"request_id": (await api.post("/api/v1/asample", json=body)).json()["request_id"]}
    return await api.post("/api/v1/retrieve_future", json=identifier)


async def sampler_of(api):
    session = (await api.post("/api/v1/create_session", json={})).json()["session_id"]
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "m"}
    return (await api.post("/api/v1/create_sampling_session", json=body)).json()[
        "sampling_session_id"
    ]


async def test_sequences_of_requests_that_run_have_a_size_together(api, monkeypatch):
    """Most likely tokens of a thousand sequences take gigabytes before the first result is there."""
    monkeypatch.setattr(sampling_clients, "MOST_SAMPLED_BYTES", 20_000)
    sampler = await sampler_of(api)
    refused = await sampled(api, sampler, 1, num_samples=8, topk_sample_logprobs=20)
    assert "Sample fewer at once" in refused.json()["error"]
    assert (await sampled(api, sampler, 2)).headers["content-type"] == "application/x-protobuf"


async def test_sequences_without_a_place_take_no_memory(api, monkeypatch):
    """A request of 200 bytes for a thousand sequences took 1.7 MB while it waited."""
    monkeypatch.setattr(sampling_clients, "MOST_AT_ONCE", 2)
    sampler, most = await sampler_of(api), 0
    stream = api.parts.engine.stream

    def counted(model, checkpoint, request):
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        return stream(model, checkpoint, request)

    monkeypatch.setattr(api.parts.engine, "stream", counted)
    answer = await sampled(api, sampler, 1, num_samples=64)
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert most < 40
