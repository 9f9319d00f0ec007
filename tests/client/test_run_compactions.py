"""Calls of a run that its provider's dialect has besides turns: they count, and are recorded as side calls."""

import json

import httpx
import openai
import pytest
from tests.platform.gateway.gateway_server import serving
from tests.request_bodies import body_of

from hud.client import connect, disconnect
from hud.client.run_pass import RunLimits, run_pass
from hud.environment import Environment
from hud.trace import AgentStep

env = Environment("numbers")
USAGE = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 1040,
}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
USER = {"type": "message", "id": "msg_1", "role": "user", "status": "completed"}
COMPACTED = {
    "id": "resp_1",
    "object": "response.compaction",
    "created_at": 1_764_000_000,
    "output": [{**USER, "content": [{"type": "input_text", "text": "hello"}]}, COMPACTION],
    "usage": USAGE,
}
TEXT = {"type": "output_text", "text": "some words", "annotations": []}
ANSWER = {
    "id": "resp_2",
    "object": "response",
    "created_at": 1_764_000_001,
    "status": "completed",
    "model": "m",
    "output": [
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "status": "completed",
            "content": [TEXT],
        }
    ],
    "usage": {**USAGE, "output_tokens": 7},
}


@env.template()
async def count():
    answer = yield "Say some words."
    yield 1.0 if "some words" in (answer or "") else 0.0


class Provider:
    """A provider with responses and their compaction. `status`: of compactions."""

    def __init__(self):
        self.status = 200
        self.requests = []

    async def __call__(self, scope, receive, send):
        body = await body_of(receive)
        self.requests.append((scope["path"], json.loads(body)))
        compacts = scope["path"].endswith("/compact")
        status = self.status if compacts else 200
        answer = COMPACTED if compacts else ANSWER
        if status != 200:
            answer = {"error": {"message": "Overloaded.", "type": "server_error"}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@pytest.fixture
async def provider(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    provider = Provider()
    with serving(provider) as url:
        config = {"url": url + "/v1", "upstream_model": "m", "price_in": 1.0, "price_out": 1000.0}
        await connect().post("/v2/models/provide", {"name": "m", "provider": config})
        yield provider
    disconnect(tmp_path)


async def played(program, **options):
    async def agent(run):
        async with run_pass(run, model="m", **options) as access:
            client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key, max_retries=0)
            async with client:
                run.trace.content = await program(client)

    job = await count().run(agent)
    return job.runs[0]


async def compact_and_answer(client):
    compacted = await client.responses.compact(model="gpt-x", input="hello")
    assert compacted.output[-1].encrypted_content == "gAAAA"
    answer = await client.responses.create(model="gpt-x", input=COMPACTED["output"])
    return answer.output_text


async def test_a_compaction_is_a_side_call_whose_tokens_and_cost_count(provider):
    run = await played(compact_and_answer)
    compaction, turn = [step for step in run.trace.steps if isinstance(step, AgentStep)]
    assert compaction.usage.prompt_tokens == 1000
    assert compaction.usage.completion_tokens == 40
    assert compaction.usage.cost_usd == pytest.approx(0.041)
    assert compaction.extra["side_call"] is True
    assert compaction.extra["endpoint"] == "responses/compact"
    assert (compaction.content, compaction.sample) == (None, None)
    # The request carries an item that only its provider reads; its tokens count all the same.
    assert turn.usage.completion_tokens == 7
    assert turn.usage.cost_usd == pytest.approx(0.008)
    assert "side_call" not in turn.extra
    assert run.trace.extra["model_calls"]["calls"] == 2
    assert run.reward == 1.0


@pytest.mark.parametrize("limits", [{"tokens": 47}, {"calls": 2}, {"cost_usd": 0.0485}])
async def test_compactions_use_up_a_runs_limits(provider, limits):
    refused = []

    async def program(client):
        text = await compact_and_answer(client)
        for call in (client.responses.compact, client.responses.create):
            with pytest.raises(openai.PermissionDeniedError) as refusal:
                await call(model="gpt-x", input="more")
            refused.append(str(refusal.value))
        return text

    await played(program, limits=RunLimits(**limits))
    assert len(refused) == 2
    assert len(provider.requests) == 2


async def test_a_compaction_has_no_field_for_its_bound(provider):
    async def program(client):
        await client.responses.compact(model="gpt-x", input="hello")
        return "some words"

    await played(program, limits=RunLimits(tokens=10_000))
    assert provider.requests == [("/v1/responses/compact", {"model": "m", "input": "hello"})]


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_refused_compaction_is_no_fault_where_the_program_goes_on(provider, goes_on):
    provider.status = 503

    async def program(client):
        with pytest.raises(openai.InternalServerError):
            await client.responses.compact(model="gpt-x", input="hello")
        if goes_on:
            await client.responses.create(model="gpt-x", input="hello, shorter")
        return "other words"

    run = await played(program)
    assert run.failure_kind == (None if goes_on else "infrastructure")
    assert run.trace.extra["model_calls"]["refused"] == 1


async def test_a_model_of_this_server_refuses_a_compaction_with_a_sentence(provider):
    config = {"url": "http://127.0.0.1:9/v1", "dialect": "anthropic"}
    await connect().post("/v2/models/provide", {"name": "other", "provider": config})

    async def agent(run):
        async with run_pass(run, model="other") as access:
            headers = {"Authorization": f"Bearer {access.key}"}
            async with httpx.AsyncClient(headers=headers) as client:
                body = {"model": "gpt-x", "input": "hello"}
                answer = await client.post(f"{access.base_url}/responses/compact", json=body)
            run.trace.content = answer.json()["error"]["message"]

    run = (await count().run(agent)).runs[0]
    assert "has no compaction" in run.trace.content
