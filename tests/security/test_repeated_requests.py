"""Idempotency keys and numbers of requests: a repeated request gets its answer, another one under the same key none."""

import asyncio
import json

import httpx
import pytest
from tests.security.server import AttackedServer, bearer

from hud.errors import ConflictError, UsageError
from hud.trace import new_id
from hud_integrations.tinker.service import futures
from hud_integrations.tinker.service.futures import Answer, Content, Futures
from hud_platform.access import Identity
from hud_platform.access.limits import TooManyRequests
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM

TEXTS = ["red green blue yellow", "what colour is it?"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
TEAM = Identity(LOCAL_TEAM, frozenset({"run"}), user_id="one")


class Server:
    """An application with keys; each call is made by the holder of a key."""

    def __init__(self, app, http):
        self.parts = app.state.parts
        self.http = http

    def key(self, name, **options):
        return self.parts.keys.mint(name, LOCAL_TEAM, **options)[1]

    async def post(self, key, path, body, **headers):
        sent = {"authorization": f"Bearer {key}", **headers}
        return await self.http.post(f"/api/v1/{path}", json=body, headers=sent)

    async def result(self, key, request_id):
        while True:
            answer = await self.post(key, "retrieve_future", {"request_id": request_id})
            if answer.status_code != 408:
                return answer


@pytest.fixture
async def server(tmp_path):
    app = create_app(PlatformConfig(tmp_path, keys=True))
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).create("m", TEXTS, sizes=SIZES)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud", timeout=60) as http:
        yield Server(app, http)
    await parts.service("tinker").futures.close()
    await asyncio.to_thread(parts.close)


def sample(tokens, **more):
    chunks = [{"type": "encoded_text", "tokens": tokens}]
    params = {"max_tokens": 2, "seed": 1}
    return {
        "prompt": {"chunks": chunks},
        "num_samples": 1,
        "sampling_params": params,
        "base_model": "m",
        **more,
    }


async def test_an_idempotency_key_with_another_body_is_refused(server):
    key = server.key("one")
    header = {"x-idempotency-key": "k"}
    first = await server.post(key, "asample", sample([1, 2]), **header)
    again = await server.post(key, "asample", sample([1, 2]), **header)
    assert first.json() == again.json()
    other = await server.post(key, "asample", sample([3, 4]), **header)
    assert other.status_code == 400
    assert "another body" in other.json()["detail"]
    assert (await server.result(key, first.json()["request_id"])).status_code == 200


async def test_a_cancelled_request_of_negative_counts_gives_no_tokens(server):
    """Each refilled the key's limit: a cancelled request keeps what it reserved."""
    key = server.key("one", tokens_per_minute=100)
    for count in (-900, 1 << 70):
        body = sample([1, 2])
        body["prompt"]["chunks"][0]["expected_tokens"] = count
        assert (await server.post(key, "asample", body)).status_code == 422


@pytest.mark.slow
async def test_another_key_s_holder_gets_an_answer_of_its_own(server):
    one, two = server.key("one"), server.key("two")
    header = {"x-idempotency-key": "k"}
    first = (await server.post(one, "asample", sample([1, 2]), **header)).json()
    assert (await server.result(two, first["request_id"])).status_code == 410
    second = await server.post(two, "asample", sample([3, 4]), **header)
    assert second.status_code == 200
    await server.post(two, "cancel_future", first)
    assert (await server.result(one, first["request_id"])).status_code == 200
    assert (await server.result(two, second.json()["request_id"])).status_code == 200


@pytest.mark.slow
async def test_a_training_client_is_driven_by_the_key_that_made_it(server):
    one, two = server.key("one"), server.key("two")
    session = (await server.post(one, "create_session", {})).json()["session_id"]
    make = {"session_id": session, "model_seq_id": 0, "base_model": "m", "lora_config": {"rank": 4}}
    assert (await server.post(two, "create_model", make)).status_code == 403
    made = (await server.post(one, "create_model", make)).json()
    model = json.loads((await server.result(one, made["request_id"])).content)["model_id"]
    save = {"model_id": model, "seq_id": 1, "path": "mine"}
    assert (await server.post(two, "save_weights", save)).status_code == 403
    assert (await server.post(two, f"sessions/{session}/finish", {"reason": {}})).status_code == 403
    saved = (await server.post(one, "save_weights", save)).json()
    assert (await server.result(one, saved["request_id"])).json()["path"].endswith("/mine")
    renamed = await server.post(one, "save_weights", {**save, "path": "other"})
    assert (renamed.status_code, "another body" in renamed.json()["detail"]) == (400, True)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [None, 3600.0])
async def test_a_url_of_weights_ends_with_the_key_that_asked_for_it(server, seconds):
    key = server.key("one", expires_in=seconds)
    session = (await server.post(key, "create_session", {})).json()["session_id"]
    make = {"session_id": session, "model_seq_id": 0, "base_model": "m", "lora_config": {"rank": 4}}
    made = (await server.post(key, "create_model", make)).json()
    model = json.loads((await server.result(key, made["request_id"])).content)["model_id"]
    save = {"model_id": model, "seq_id": 1, "path": "files"}
    saved = (await server.post(key, "save_weights_external", save)).json()
    await server.result(key, saved["request_id"])
    path = f"/api/v1/training_runs/{model}/checkpoints/external_weights/files/external_weights_urls"
    answer = await server.http.get(path, headers={"authorization": f"Bearer {key}"})
    url = answer.json()["urls"]["adapter_config.json"]
    assert (await server.http.get(url)).status_code == 200
    assert (await server.http.get(url.replace("/downloads/", "/downloads/x"))).status_code == 404
    server.parts.keys.revoke(LOCAL_TEAM, "one")
    refused = await server.http.get(url)
    assert (refused.status_code, "revoked" in refused.text) == (403, True)


async def test_an_upload_s_url_ends_with_the_key_that_asked_for_it(server):
    key = server.key("one")
    header = {"authorization": f"Bearer {key}"}
    begun = (await server.http.post("/v2/builds/upload-url", headers=header)).json()
    another = (await server.http.post("/v2/builds/upload-url", headers=header)).json()
    swapped = begun["upload_url"].replace(begun["build_id"], another["build_id"])
    assert (await server.http.put(swapped, content=b"x")).status_code == 403
    server.parts.keys.revoke(LOCAL_TEAM, "one")
    assert (await server.http.put(begun["upload_url"], content=b"x")).status_code == 403


async def test_a_link_for_one_purpose_is_none_for_another(server):
    links = server.parts.links
    token = links.make("upload", "a", TEAM, 1e12)
    assert links.subject("upload", token) == "a"
    with pytest.raises(Exception, match="not one of this server's"):
        links.subject("download", token)


def test_a_rollout_s_id_with_another_content_is_a_conflict(tmp_path):
    store = Store.open(tmp_path)
    rollouts, trace = Rollouts(store), new_id()
    spec = {"env": "echo", "task": "say", "slug": "say"}
    assert rollouts.submit(LOCAL_TEAM, None, trace, None, spec) == "queued"
    assert rollouts.submit(LOCAL_TEAM, None, trace, None, spec) == "queued"
    with pytest.raises(ConflictError, match="another content"):
        rollouts.submit(LOCAL_TEAM, None, trace, None, {**spec, "slug": "shout"})
    store.close()


async def finished(content):
    return Answer(content)


async def test_results_of_a_team_are_kept_up_to_a_size_the_oldest_dropped_first(monkeypatch):
    monkeypatch.setattr(futures, "MOST_BYTES", 100_000)
    kept, other = Futures(), Identity("b" * 32, frozenset())
    kept.start("0", other, Content.of("", b""), lambda: finished(bytes(30_000)))
    for number in range(6):
        kept.start(str(number), TEAM, Content.of("", b""), lambda: finished(bytes(30_000)))
        await kept.wait(str(number), TEAM)
    known = [number for number in range(6) if kept.knows(str(number), TEAM)]
    assert known == [3, 4, 5]
    assert kept.knows("0", other)


async def test_the_length_of_an_idempotency_key_counts(monkeypatch):
    monkeypatch.setattr(futures, "MOST_BYTES", 100_000)
    kept = Futures()
    keys = [str(number) + "k" * 30_000 for number in range(6)]
    for key in keys:
        kept.start(key, TEAM, Content.of("", b""), lambda: finished(b""))
        await kept.wait(key, TEAM)
    assert [kept.knows(key, TEAM) for key in keys] == [False] * 3 + [True] * 3


async def test_requests_of_a_team_that_run_have_a_size_together(monkeypatch):
    monkeypatch.setattr(futures, "MOST_BYTES", 10_000)
    kept, over = Futures(), asyncio.Event()

    async def work():
        await over.wait()
        return Answer(b"")

    kept.start("0", TEAM, Content("a", 20_000), work)  # One alone is taken whatever its size.
    with pytest.raises(TooManyRequests, match="MiB already"):
        kept.start("1", TEAM, Content("a", 1), work)
    over.set()
    await kept.wait("0", TEAM)
    kept.start("1", TEAM, Content("a", 1), work)
    with pytest.raises(UsageError, match="another body"):
        kept.start("1", TEAM, Content("b", 1), work)
    await kept.close()


@pytest.mark.parametrize("text", ["", "AAAA", "e30", "upload:e30"])
async def test_what_is_signed_for_another_purpose_is_no_pass(tmp_path, text):
    attacked = AttackedServer(tmp_path / "home")
    signature = attacked.parts.passes.sign(text)
    headers = bearer(f"hudpass_{text}.{signature}")
    assert (await attacked.ask("GET", "/v2/jobs", headers)).status == 401


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_what_a_key_samples_ends_with_it(server, end):
    """Its results could not be fetched any more, and hours of sampling would be others' to wait for."""
    state, keys = server.parts.service("tinker"), server.parts.keys
    first, secret = keys.mint("first", LOCAL_TEAM, expires_in=0.3 if end == "expired" else None)
    other, _ = keys.mint("other", LOCAL_TEAM)

    async def forever():
        await asyncio.sleep(3600)

    for key in (first, other):
        state.futures.start("sample:1", key.identity, Content("a", 1), forever)
        state.futures.start("a:train:1:1", key.identity, Content("a", 1), forever)
    await state.end_sampling()
    assert state.futures.sampling_keys() == {first.id, other.id}
    if end == "expired":
        await asyncio.sleep(0.4)
    else:
        keys.revoke(LOCAL_TEAM, first.id)
    await state.end_sampling()
    await asyncio.sleep(0)
    assert state.futures.sampling_keys() == {other.id}
    assert "cancelled" in (await state.futures.wait("sample:1", first.identity)).content.decode()
    assert (
        await server.post(secret, "retrieve_future", {"request_id": "sample:1"})
    ).status_code == 401
