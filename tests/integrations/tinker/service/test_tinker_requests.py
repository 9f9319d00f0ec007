"""Requests of Tinker's API over HTTP: numbered, joined when repeated, polled, and released with their session."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import OverloadedError, UsageError
from hud.trace import new_id
from hud_integrations.shared.protobuf import (
    data,
    double,
    fields,
    integer,
    integers,
    signed,
)
from hud_integrations.tinker.service import futures
from hud_integrations.tinker.service.wire.messages import read_forward_backward
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.models.records import ModelConfig
from hud_platform.process.config import PlatformConfig
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM

TEXTS = ["red green blue yellow", "what colour is it?"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}


class Api:
    """Tinker's API of an application."""

    def __init__(self, http):
        self.http = http

    async def post(self, path, body, status=200):
        answer = await self.http.post(f"/api/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def result(self, submitted):
        """Poll until a request has its result."""
        while True:
            body = {"request_id": submitted["request_id"]}
            answer = await self.http.post("/api/v1/retrieve_future", json=body)
            if answer.status_code != 408:
                assert answer.status_code == 200, answer.text
                proto = "protobuf" in answer.headers["content-type"]
                return answer.content if proto else answer.json()

    async def model(self):
        """Make a training client; returns its session and its model."""
        session = (await self.post("create_session", {"tags": [], "sdk_version": "0.38.0"}))[
            "session_id"
        ]
        body = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": "m",
            "lora_config": {"rank": 4},
        }
        made = await self.result(await self.post("create_model", body))
        assert made["model_id"] == f"{session}:train:0"
        return session, made["model_id"]

    async def backward(self, model, number, **more):
        body = forward_backward(model, number, **more)
        headers = {"content-type": "application/x-protobuf"}
        answer = await self.http.post("/api/v1/forward_backward", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def step(self, model, number):
        return await self.post(
            "optim_step", {"model_id": model, "seq_id": number, "adam_params": {}}
        )


def forward_backward(
    model, number, tokens=(7, 8, 9), targets=(8, 9, 10), inputs="weights", forward_only=False
):
    """The protocol buffer of a supervised pass."""

    def tensor(values, dtype, kind):
        return (
            data(1, np.asarray(values, dtype).tobytes())
            + integer(3, kind)
            + integer(4, len(values))
        )

    def entry(name, message):
        return data(2, data(1, name) + data(2, message))

    chunk = data(1, data(1, data(1, np.asarray(tokens, np.int32).tobytes())))
    columns = entry("target_tokens", tensor(targets, np.int64, 2))
    columns += entry(inputs, tensor([1.0] * len(targets), np.float32, 1))
    head = data(1, model) + integer(2, number)
    loss = data(4, "cross_entropy") + integer(6, int(forward_only))
    return head + data(3, chunk + columns) + loss


@pytest.fixture
async def api(tmp_path):
    app = create_app(PlatformConfig(tmp_path))
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).create("m", TEXTS, sizes=SIZES)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud", timeout=60) as http:
        made = Api(http)
        made.parts = parts
        yield made
    await parts.service("tinker").futures.close()
    await asyncio.to_thread(parts.close)


async def test_requests_run_in_their_order_whatever_order_they_arrive_in(api, monkeypatch):
    monkeypatch.setattr(futures, "POLL_SECONDS", 0.05)
    _, model = await api.model()
    step = await api.step(model, 2)
    body = {"request_id": step["request_id"]}
    waiting = await api.post("retrieve_future", body, status=408)
    assert waiting == {
        "type": "try_again",
        "request_id": step["request_id"],
        "queue_state": "active",
    }
    passed = await api.backward(model, 1)
    assert b"loss:sum" in await api.result(passed)
    assert (await api.result(step))["metrics"]["step:max"] == 1.0


async def test_a_repeated_request_joins_the_first_and_runs_once(api):
    _, model = await api.model()
    first, second = await api.backward(model, 1), await api.backward(model, 1)
    assert first == second
    assert await api.result(first) == await api.result(second)
    steps = [await api.step(model, 2) for _ in range(3)]
    found = [await api.result(one) for one in steps]
    assert found[0] == found[1] == found[2]
    third = await api.result(await api.backward(model, 3))
    assert third != await api.result(first)
    assert (await api.result(await api.step(model, 4)))["metrics"]["step:max"] == 2.0


async def test_a_number_of_another_kind_of_request_is_refused(api):
    """Their bodies may be equal: a client would take the path of one save for that of the other."""
    _, model = await api.model()
    body = {"model_id": model, "seq_id": 1, "path": "a"}
    await api.post("save_weights", body)
    answer = await api.post("save_weights_external", body, status=400)
    assert "to another path" in answer["detail"]


async def test_a_request_whose_result_was_dropped_is_not_run_again(api, monkeypatch):
    monkeypatch.setattr(futures, "FETCHED_SECONDS", 0.0)
    _, model = await api.model()
    first = await api.backward(model, 1)
    await api.result(first)
    await api.result(await api.step(model, 2))
    body = {"model_id": model, "seq_id": 2, "adam_params": {}}
    refused = await api.post("optim_step", body, status=400)
    assert "Request 2 of" in refused["detail"]
    gone = await api.post("retrieve_future", {"request_id": first["request_id"]}, status=410)
    assert "send it again" in gone["detail"]


async def test_a_refused_request_takes_its_turn(api):
    _, model = await api.model()
    params = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": -1.0}}
    await api.post("optim_step", params, status=422)
    params = {"model_id": model, "seq_id": 2, "optimizer_params": {"type": "dimuon"}}
    assert (
        "no optimizer 'dimuon'" in (await api.result(await api.post("optim_step", params)))["error"]
    )
    files = {"model_id": model, "seq_id": 3, "age_encryption_recipients": ["age1"]}
    await api.post("save_weights_external", files, status=400)
    await api.backward(model, 4)
    assert (await api.result(await api.step(model, 5)))["metrics"]["step:max"] == 1.0


async def test_a_pass_that_cannot_be_read_fails_in_its_turn_and_discards_the_gradient(api):
    _, model = await api.model()
    await api.backward(model, 1)
    unread, step = await api.backward(model, 2, inputs="weight"), await api.step(model, 3)
    assert "has the loss input 'weight'" in (await api.result(unread))["error"]
    assert "Nothing was accumulated" in (await api.result(step))["error"]
    await api.backward(model, 4)
    assert (await api.result(await api.step(model, 5)))["metrics"]["step:max"] == 1.0


async def test_a_damaged_pass_fails_in_its_turn(api):
    """Requests after it would wait for ten minutes."""
    _, model = await api.model()
    await api.backward(model, 1)
    body, headers = forward_backward(model, 2), {"content-type": "application/x-protobuf"}
    answer = await api.http.post("/api/v1/forward_backward", content=body[:-9], headers=headers)
    assert answer.status_code == 200, answer.text
    assert "no valid protocol buffer" in (await api.result(answer.json()))["error"]
    assert "Nothing was accumulated" in (await api.result(await api.step(model, 3)))["error"]
    await api.backward(model, 4)
    assert (await api.result(await api.step(model, 5)))["metrics"]["step:max"] == 1.0


async def test_no_step_applies_the_rest_of_a_batch_of_which_a_part_failed(api):
    """The client sends the parts of a batch side by side, its first one last."""
    _, model = await api.model()
    rest, step = await api.backward(model, 2), await api.step(model, 3)
    failed = await api.backward(model, 1, targets=(8, 9, 9_999))
    assert "token id 9999" in (await api.result(failed))["error"]
    assert "part of the same batch failed" in (await api.result(rest))["error"]
    assert "Nothing was accumulated" in (await api.result(step))["error"]

    # The batch that is sent again is another.
    failed = await api.backward(model, 4, targets=(8, 9, 9_999))
    assert "token id 9999" in (await api.result(failed))["error"]
    await api.backward(model, 5)
    assert (await api.result(await api.step(model, 6)))["metrics"]["step:max"] == 1.0


async def test_a_forward_pass_that_cannot_be_read_keeps_the_gradient(api):
    _, model = await api.model()
    await api.backward(model, 1)
    unread = await api.backward(model, 2, inputs="weight", forward_only=True)
    assert "has the loss input 'weight'" in (await api.result(unread))["error"]
    assert (await api.result(await api.step(model, 3)))["metrics"]["step:max"] == 1.0


@pytest.mark.slow
async def test_requests_do_not_wait_for_ever_for_one_that_was_not_received(api, monkeypatch):
    monkeypatch.setattr(futures, "MISSING_SECONDS", 0.05)
    _, model = await api.model()
    await api.result(await api.backward(model, 1))
    late = await api.result(await api.step(model, 3))
    assert late["error"].startswith("Request 2 of this training client was not received")
    assert (await api.result(await api.step(model, 4)))["metrics"]["step:max"] == 1.0


@pytest.mark.slow
async def test_a_request_that_later_ones_did_not_wait_for_is_refused(api, monkeypatch):
    monkeypatch.setattr(futures, "MISSING_SECONDS", 0.2)
    _, model = await api.model()
    await api.result(await api.backward(model, 1))
    second = await api.step(model, 4)
    await asyncio.sleep(0.1)
    first = await api.backward(model, 3)
    assert "Request 2 of" in (await api.result(second))["error"]
    assert "did not wait for it" in (await api.result(first))["error"]
    assert (await api.result(await api.step(model, 5)))["metrics"]["step:max"] == 1.0


async def test_a_session_without_heartbeats_saves_and_releases_its_models(api):
    session, model = await api.model()
    await api.result(await api.backward(model, 1))
    await api.result(await api.step(model, 2))
    record = api.parts.registry.model(model)
    assert record.head_checkpoint_id is None
    assert api.parts.registry.leases.holder(record.id) is not None

    await api.parts.service("tinker").sweep()
    assert api.parts.registry.leases.holder(record.id) is not None  # It was seen a moment ago.
    api.parts.service("tinker").sessions.get(session, LOCAL_TEAM).seen -= 1_000
    await api.parts.service("tinker").sweep()
    assert api.parts.registry.leases.holder(record.id) is None
    head = api.parts.registry.model(model).head_checkpoint_id
    assert api.parts.registry.tree.get(head).step == 1

    # A client that was asleep goes on where it was.
    await api.post("session_heartbeat", {"session_id": session})
    await api.result(await api.backward(model, 3))
    assert (await api.result(await api.step(model, 4)))["metrics"]["step:max"] == 2.0


async def test_a_finished_session_takes_no_more_requests(api):
    session, model = await api.model()
    await api.result(await api.backward(model, 1))
    body = {"reason": {"type": "success"}, "detail": None}
    await api.post(f"sessions/{session}/finish", body, status=204)
    ended = await api.post("session_heartbeat", {"session_id": session}, status=410)
    assert "has ended" in ended["detail"]
    assert api.parts.registry.leases.holder(api.parts.registry.model(model).id) is None


@pytest.mark.slow
async def test_unnamed_saves_keep_the_files_of_the_newest(api, monkeypatch):
    monkeypatch.setattr("hud_integrations.tinker.service.training_clients.SNAPSHOTS", 2)
    _, model = await api.model()
    identifiers = []
    for number in range(1, 13, 3):
        await api.backward(model, number)
        await api.step(model, number + 1)
        body = {"model_id": model, "seq_id": number + 2, "sampling_session_seq_id": number}
        saved = await api.result(await api.post("save_weights_for_sampler", body))
        identifiers.append(saved["sampling_session_id"].rpartition(":")[2])
    nodes = api.parts.registry.tree.nodes(api.parts.registry.model(model))
    assert [node.id for node in nodes] == identifiers
    assert [node.folder is not None for node in nodes] == [False, False, True, True]


@pytest.mark.slow
async def test_sampling_waits_where_the_engine_is_full_and_counts_as_usage(api, monkeypatch):
    session, _ = await api.model()
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "m"}
    sampler = (await api.post("create_sampling_session", body))["sampling_session_id"]
    engine, full = api.parts.engine, 3
    stream = engine.stream

    def busy(model, checkpoint, request):
        nonlocal full
        full -= 1
        if full >= 0:
            raise OverloadedError("full", retry_after=0.01)
        return stream(model, checkpoint, request)

    monkeypatch.setattr(engine, "stream", busy)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [7, 8, 9]}]}
    body = {"sampling_session_id": sampler, "seq_id": 1, "num_samples": 2, "prompt": prompt}
    body["sampling_params"] = {"max_tokens": 4, "stop": []}
    submitted = await api.post("asample", body)
    assert submitted == await api.post("asample", body)  # Joined, not sampled twice.
    assert len(submitted["sample_sequence_ids"]) == 2
    sampled = await api.result(submitted)
    assert [number for number, _ in fields(sampled)] == [1, 1, 4]
    api.parts.gateway.ledger.flush()
    (row,) = api.parts.store.rows(sa.select(tables.requests))
    assert (row.model, row.route, row.prompt_tokens, row.completion_tokens) == (
        "m",
        "asample",
        6,
        8,
    )


@asynccontextmanager
async def limited(tmp_path, tokens_per_minute):
    """An application, and its API with a key of so many tokens a minute."""
    app = create_app(PlatformConfig(tmp_path, keys=True))
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).create("m", TEXTS, sizes=SIZES)
    secret = parts.keys.mint("k", LOCAL_TEAM, tokens_per_minute=tokens_per_minute)[1]
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as http:
        http.headers["authorization"] = f"Bearer {secret}"
        yield parts, Api(http)
    await asyncio.to_thread(parts.close)


def endless(samples):
    """A request to sample without a limit of tokens."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [7, 8, 9]}]}
    body = {"base_model": "m", "num_samples": samples, "prompt": prompt}
    return {**body, "sampling_params": {"stop": []}}


def counted(parts):
    """The ledger's requests, the oldest first."""
    parts.gateway.ledger.flush()
    return parts.store.rows(sa.select(tables.requests).order_by("created_at"))


async def test_samples_without_max_tokens_stay_within_the_limit_of_the_key(tmp_path):
    async with limited(tmp_path, 20) as (parts, api):
        await api.result(await api.post("asample", endless(2)))
        (row,) = counted(parts)
    assert (row.prompt_tokens, row.completion_tokens) == (6, 14)


async def test_a_cancelled_sample_gives_back_the_tokens_that_were_not_sampled(
    tmp_path, monkeypatch
):
    async with limited(tmp_path, 40) as (parts, api):
        stream, sampled = parts.engine.stream, asyncio.Event()

        async def hanging(model, checkpoint, request):
            async with aclosing(stream(model, checkpoint, request)) as items:
                yield await anext(items)
                sampled.set()
                await asyncio.sleep(60)

        monkeypatch.setattr(parts.engine, "stream", hanging)
        begun = await api.post("asample", endless(1))
        await asyncio.wait_for(sampled.wait(), 10)
        await api.post("asample", endless(1), 429)
        await api.post("cancel_future", {"request_id": begun["request_id"]}, 204)
        assert "cancelled" in (await api.result(begun))["error"]
        monkeypatch.setattr(parts.engine, "stream", stream)
        for _ in range(200):  # The tokens come back when the stream has ended.
            answer = await api.http.post("/api/v1/asample", json=endless(1))
            if answer.status_code != 429:
                break
            await asyncio.sleep(0.05)
        await api.result(answer.json())
        first, second = counted(parts)
    assert (first.status, first.prompt_tokens, second.status) == (499, 3, 200)
    assert 1 <= first.completion_tokens <= 10
    left = 40 - 3 - first.completion_tokens - 3
    assert left <= second.completion_tokens <= left + 10, "those of 15 s come back meanwhile"


async def test_a_model_from_the_hub_is_named_by_its_hub_id(api):
    registry = api.parts.registry.of(LOCAL_TEAM)
    folder = registry.model("m").folder
    config = ModelConfig(source="somebody/some-model")
    registry._insert(new_id(), "mine", folder, kind="added", config=config)
    models = (await api.http.get("/api/v1/get_server_capabilities")).json()["supported_models"]
    assert [one["model_name"] for one in models] == ["m", "somebody/some-model"]
    session = (await api.post("create_session", {"tags": []}))["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": "somebody/some-model"}
    made = await api.result(await api.post("create_model", body))
    info = await api.post("get_info", {"model_id": made["model_id"]})
    assert info["model_data"]["model_name"] == "somebody/some-model"
    assert info["model_data"]["tokenizer_id"] == "somebody/some-model"
    assert info["is_lora"] is False


async def test_a_request_that_was_given_up_is_answered_at_once(api, monkeypatch):
    monkeypatch.setattr(futures, "MISSING_SECONDS", 1.0)
    _, model = await api.model()
    await api.result(await api.backward(model, 1))
    last = await api.step(model, 4)
    await asyncio.sleep(0.6)
    late = await api.backward(model, 3)
    assert "Request 2 of" in (await api.result(last))["error"]
    began = asyncio.get_running_loop().time()
    assert "did not wait for it" in (await api.result(late))["error"]
    assert asyncio.get_running_loop().time() - began < 0.3


async def test_a_datum_beyond_the_context_is_refused(api):
    _, model = await api.model()
    tokens, targets = [7] * 65, [8] * 65
    long = await api.result(await api.backward(model, 1, tokens=tokens, targets=targets))
    assert long["error"] == "Datum 0 has 65 tokens; the model's context holds 64."
    await api.backward(model, 2, tokens=tokens[1:], targets=targets[1:])
    assert (await api.result(await api.step(model, 3)))["metrics"]["step:max"] == 1.0


async def test_a_step_that_makes_weights_infinite_is_refused_and_undone(api):
    _, model = await api.model()
    first = await api.result(await api.backward(model, 1, forward_only=True))
    await api.backward(model, 2)
    body = {"model_id": model, "seq_id": 3, "adam_params": {"learning_rate": 1e30}}
    refused = await api.result(await api.post("optim_step", body))
    assert "makes weights that are not finite" in refused["error"]
    assert await api.result(await api.backward(model, 4, forward_only=True)) == first


@pytest.mark.parametrize("name", ["learning_rate", "eps", "weight_decay", "grad_clip_norm"])
async def test_infinite_settings_of_a_step_are_refused(api, name):
    _, model = await api.model()
    body = f'{{"model_id": "{model}", "seq_id": 1, "adam_params": {{"{name}": 1e400}}}}'
    headers = {"content-type": "application/json"}
    answer = await api.http.post("/api/v1/optim_step", content=body, headers=headers)
    assert (answer.status_code, name in answer.text) == (422, True)


async def test_a_time_to_live_beyond_every_calendar_is_refused(api):
    _, model = await api.model()
    await api.result(await api.post("save_weights", {"model_id": model, "seq_id": 1, "path": "a"}))
    path = f"/api/v1/training_runs/{model}/checkpoints/weights/a/ttl"
    answer = await api.http.put(path, json={"ttl_seconds": 10**12})
    assert answer.status_code == 422
    assert "ttl_seconds" in answer.text


async def test_another_team_sees_no_session_and_takes_no_turn(tmp_path):
    app = create_app(PlatformConfig(tmp_path, keys=True))
    parts = app.state.parts
    parts.registry.of(LOCAL_TEAM).create("m", TEXTS, sizes=SIZES)
    _, ours = parts.keys.mint("ours", LOCAL_TEAM)
    _, theirs = parts.keys.mint("theirs", Teams(parts.store).find_or_create("theirs").id)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud", timeout=60) as http:
        http.headers["x-api-key"] = f"tml-{ours}"
        session, model = await Api(http).model()
        await Api(http).post("session_heartbeat", {"session_id": session})
        refused = {"model_id": model, "seq_id": 1, "adam_params": {"learning_rate": -1.0}}
        http.headers["x-api-key"] = f"tml-{theirs}"
        await Api(http).post("session_heartbeat", {"session_id": session}, status=404)
        await Api(http).post("optim_step", refused, status=422)
        http.headers["x-api-key"] = f"tml-{ours}"
        passed = await Api(http).backward(model, 1)
        assert b"loss:sum" in await Api(http).result(passed)
    await parts.service("tinker").futures.close()
    await asyncio.to_thread(parts.close)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(-(2**63), 2**63 - 1) | st.binary())))
def test_fields_are_read_as_they_were_written(values):
    written = b"".join(
        integer(number, one) if isinstance(one, int) else data(number, one)
        for number, one in values
    )
    read = [
        (number, signed(one) if isinstance(one, int) else one) for number, one in fields(written)
    ]
    assert read == values


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused_with_a_sentence(body):
    try:
        said = str(read_forward_backward(body).fault)
    except UsageError as error:
        said = str(error)
    assert said.endswith(".")


def test_a_message_of_many_fields_is_refused():
    with pytest.raises(UsageError, match="more than 1,000,000 fields"):
        read_forward_backward(integer(6, 1) * 1_000_001)


def test_numbers_of_a_message():
    assert integers(b"\x01\xac\x02") == [1, 300]
    assert integers(7) == [7]
    ((number, value),) = fields(double(3, 0.5))
    assert (number, len(value)) == (3, 8)
