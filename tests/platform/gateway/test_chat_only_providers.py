"""Providers with chat completions alone: requests of the other dialects of their family are translated."""

import json

import httpx
import openai
import pytest
from tests.platform.gateway.gateway_server import serving
from tests.platform.gateway.tool_conversations import in_responses
from tests.request_bodies import body_of

from hud.client import connect, disconnect
from hud.trace import new_id, parse_step
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.gateway import provider_endpoints
from hud_platform.process.config import PlatformConfig

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
ITEM_ERROR = {
    "error": {
        "message": "Item with id 'rs_1' not found.",
        "type": "invalid_request_error",
        "param": "input",
        "code": None,
    }
}
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [],
    "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
}


def chunk(delta, reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def turn(messages):
    """Return the chunks of an answer: a call, and after its result a text."""
    if messages[-1]["role"] == "tool":
        return [chunk({"content": "7 apples"}), chunk({}, "stop")]
    call = {"index": 0, "id": "call_1", "function": {"name": "look", "arguments": "{}"}}
    return [chunk({"tool_calls": [{**call, "type": "function"}]}), chunk({}, "tool_calls")]


class Provider:
    """A server of chat completions; `other` is its answer to every other path."""

    def __init__(self):
        self.requests = []
        self.other = 404, "text/plain", b"404: Not Found"

    @property
    def paths(self):
        return [path for path, _ in self.requests]

    def reply(self, path, body):
        self.requests.append((path, json.loads(body)))
        if path != CHAT:
            return self.other
        chunks = turn(self.requests[-1][1]["messages"])
        chunks[-1]["usage"] = {"prompt_tokens": 9, "completion_tokens": 4}
        events = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in chunks)
        return 200, "text/event-stream", events + b"data: [DONE]\n\n"

    async def __call__(self, scope, receive, send):
        body = await body_of(receive)
        status, kind, answer = self.reply(scope["path"], body)
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class ResponsesProvider(Provider):
    """A server that has responses: a missing item is 404, missing fields are 400."""

    def reply(self, path, body):
        if path != RESPONSES:
            return super().reply(path, body)
        self.requests.append((path, json.loads(body)))
        if "model" not in self.requests[-1][1]:
            return 400, "application/json", b'{"error": {"message": "model is required"}}'
        return 404, "application/json", json.dumps(ITEM_ERROR).encode()


def register(url, provider_url, **options):
    config = {"url": provider_url + "/v1", "dialect": "openai", "upstream_model": "m"}
    body = {"name": "m", "provider": config}
    answer = httpx.post(url + "/v2/models/provide", json=body, **options)
    assert answer.status_code == 200, answer.text


@pytest.fixture
def url(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home"))
    with serving(app) as url:
        yield url
    app.state.parts.close()


@pytest.fixture
def provider(url):
    provider = Provider()
    with serving(provider) as provider_url:
        register(url, provider_url)
        yield provider


@pytest.fixture
def client(url):
    return openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)


def play(client, stream):
    """Return the answer to a tool's result, in responses."""
    *_, answer = in_responses(client, stream, "seven", model="m", tools=[LOOK])
    return answer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [404, 405])
def test_responses_are_translated_where_the_server_has_none(client, provider, stream, status):
    provider.other = status, "text/plain", b"404: Not Found"
    answer = play(client, stream)
    assert answer.output_text == "7 apples"
    assert answer.usage.output_tokens == 4
    # The endpoint's absence is remembered: the second turn goes to chat completions at once.
    assert provider.paths == [RESPONSES, RESPONSES, CHAT, CHAT]
    assert provider.requests[1][1] == {}


def test_a_translated_request_reserves_its_tokens_once(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "keyed", keys=True))
    team, keys = Teams(app.state.parts.store).default().id, app.state.parts.keys
    _, admin = keys.mint("admin", team, scopes=("admin",))
    _, limited = keys.mint("limited", team, scopes=("run",), tokens_per_minute=1000)
    provider = Provider()
    with serving(provider) as provider_url, serving(app) as url:
        register(url, provider_url, headers={"authorization": f"Bearer {admin}"})
        client = openai.OpenAI(base_url=url + "/v1", api_key=limited, max_retries=0)
        for _ in range(3):
            client.responses.create(model="m", input="hello", max_output_tokens=900)
    app.state.parts.close()


def test_an_endpoint_that_a_server_got_later_is_seen_after_a_while(client, provider, monkeypatch):
    monkeypatch.setattr(provider_endpoints, "REMEMBERED_SECONDS", 0.0)
    client.responses.create(model="m", input="hello", tools=[LOOK])
    provider.other = 200, "application/json", json.dumps(RESPONSE).encode()
    assert client.responses.create(model="m", input="hello").id == "resp_1"


def test_a_404_of_an_endpoint_that_is_there_is_the_clients(url, client):
    provider = ResponsesProvider()
    with serving(provider) as provider_url:
        register(url, provider_url)
        for _ in range(2):
            with pytest.raises(openai.NotFoundError, match="Item with id"):
                client.responses.create(model="m", input="hello")
    assert CHAT not in provider.paths


def test_a_missing_count_and_a_missing_compaction_are_refused_with_a_sentence(client, provider):
    with pytest.raises(openai.BadRequestError, match="provider's own dialect only"):
        client.responses.input_tokens.count(model="m", input="hello")
    with pytest.raises(openai.BadRequestError, match="has no compaction"):
        client.responses.compact(model="m", input="hello")
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="m", prompt="hello")


def test_a_server_without_chat_completions_is_passed_its_own_error(client, url):
    provider = Provider()
    provider.reply = lambda path, body: provider.other
    with serving(provider) as provider_url:
        register(url, provider_url)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hello"}]
            )
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="m", input="hello")


async def test_a_runs_calls_are_steps_with_their_tool_results(tmp_path, monkeypatch):
    """A request that is sent twice, passed on and translated, is one call with one step."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    provider = Provider()
    with serving(provider) as provider_url, connect().embedded.listening() as url:
        config = {"url": provider_url + "/v1", "dialect": "openai", "upstream_model": "m"}
        await connect().post("/v2/models/provide", {"name": "m", "provider": config})
        asked = {"trace_id": new_id(), "model": "m"}
        opened = await connect().post("/v1/run-passes", asked)
        headers = {"Authorization": f"Bearer {opened['key']}"}
        conversation = [{"type": "message", "role": "user", "content": "hello"}]
        async with httpx.AsyncClient(base_url=url, timeout=30, headers=headers) as program:
            for _ in range(2):
                monkeypatch.setattr(provider_endpoints, "REMEMBERED_SECONDS", 0.0)
                body = {"model": "any", "input": conversation, "tools": [LOOK]}
                answer = await program.post(RESPONSES, json=body)
                assert answer.status_code == 200, answer.text
                output = answer.json()["output"]
                conversation += output
                for item in output:
                    if item["type"] == "function_call":
                        result = {"type": "function_call_output", "call_id": item["call_id"]}
                        conversation.append({**result, "output": "seven"})
        path = f"/v1/run-passes/{opened['id']}/end"
        result = await connect().post(path, {"token": opened["token"]})
    disconnect(tmp_path)
    steps = [parse_step(step) for step in result["steps"]]
    assert [step.source for step in steps] == ["agent", "tool", "agent"]
    assert steps[0].usage.completion_tokens == steps[2].usage.completion_tokens == 4
    assert result["metrics"]["calls"] == 2
    assert result["refusal"] is None
