"""Providers' models: what goes through to them and comes back, and what never does."""

import json
import logging
import time

import anthropic
import httpx
import openai
import pytest
import sqlalchemy as sa
from google import genai
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving
from tests.platform.gateway.tool_conversations import in_responses
from tests.request_bodies import body_of

from hud.errors import UsageError
from hud_platform.access.limits import TokenBudget
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.server import server_settings
from hud_platform.store import tables

KEY = "sk-the-key-of-this-server-0123456789"
HELLO = [{"role": "user", "content": "hello"}]
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}],
    "usage": {
        "prompt_tokens": 1000,
        "completion_tokens": 200,
        "prompt_tokens_details": {"cached_tokens": 30},
    },
}
STREAM = [
    b'data: {"choices":[{"delta":{"content":"h',
    b'i"}}]}\r\n\r\n: a comment\n\ndata: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n',
    b"\ndata: [DONE]\n\n",
]


class StandIn:
    """A provider: keeps what it is sent, and answers as it is told."""

    def __init__(self):
        self.requests = []
        self.status, self.headers, self.pieces = 200, {}, [json.dumps(ANSWER).encode()]

    async def __call__(self, scope, receive, send):
        body = await body_of(receive)
        self.requests.append((scope, dict(scope["headers"]), body))
        headers = {"content-type": "application/json", **self.headers}
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": sent})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def provider():
    standin = StandIn()
    with serving(standin) as url:
        standin.url = url
        yield standin


@pytest.fixture
def app(tmp_path, monkeypatch):
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    monkeypatch.setenv("STANDIN_API_KEY", KEY)
    app = create_app(PlatformConfig(tmp_path / "home"))
    yield app
    app.state.parts.close()


@pytest.fixture
def url(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def register(url, provider):
    def register(name="model", status=200, **fields):
        config = {"url": provider.url + "/v1", "key_env": "STANDIN_API_KEY", **fields}
        answer = httpx.post(url + "/v2/models/provide", json={"name": name, "provider": config})
        assert answer.status_code == status, answer.text
        return answer.json()

    return register


def written(app, count=1):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with app.state.parts.store.read() as connection:
            rows = connection.execute(sa.select(tables.requests)).all()
        if len(rows) >= count:
            return rows
        time.sleep(0.02)
    raise AssertionError("It was never written down.")


# -- passing through --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_request_goes_through_as_it_is_and_so_does_the_answer(app, url, provider, register):
    register(price_in=2.0, price_out=10.0)
    provider.headers = {"x-request-id": "r1", "set-cookie": "a=b", "openai-organization": "us"}
    body = b'{ "model":"model",  "messages": [{"role":"user","content":"h\\u00e4"}], "odd": 1.50 }'
    headers = {
        "authorization": "Bearer the-clients-own",
        "x-api-key": "the-clients-own",
        "trace-id": "ab" * 16,
        "cookie": "c=d",
        "content-type": "application/json",
    }
    answer = httpx.post(url + "/v1/chat/completions?a=1&key=k", content=body, headers=headers)
    assert answer.content == provider.pieces[0]
    assert answer.headers["x-request-id"] == "r1"
    assert not {"set-cookie", "openai-organization"} & set(answer.headers)
    scope, sent, received = provider.requests[0]
    assert (scope["path"], scope["query_string"]) == ("/v1/chat/completions", b"a=1")
    assert received == body
    assert sent[b"authorization"] == f"Bearer {KEY}".encode()
    assert "the-clients-own" not in str(provider.requests)
    assert not {b"trace-id", b"cookie", b"x-api-key"} & set(sent)
    (row,) = written(app)
    assert (row.model, row.status, row.trace_id) == ("model", 200, "ab" * 16)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (1000, 200, 30)
    assert row.cost_usd == pytest.approx(1000 * 2e-6 + 200 * 10e-6)


@pytest.mark.slow
def test_only_the_name_of_the_model_is_exchanged(url, provider, register):
    register(upstream_model="org/Model-9")
    httpx.post(url + "/chat/completions", json={"model": "model", "messages": HELLO, "x": [1]})
    assert json.loads(provider.requests[0][2]) == {
        "model": "org/Model-9",
        "messages": HELLO,
        "x": [1],
    }


@pytest.mark.slow
def test_the_bytes_of_a_stream_are_untouched(app, url, provider, register):
    register()
    provider.headers, provider.pieces = {"content-type": "text/event-stream"}, STREAM
    body = {"model": "model", "messages": HELLO, "stream": True}
    answer = httpx.post(url + "/chat/completions", json=body)
    assert answer.content == b"".join(STREAM)
    assert answer.headers["content-type"] == "text/event-stream"
    (row,) = written(app)
    assert (row.prompt_tokens, row.completion_tokens) == (7, 3)


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 404, 409, 422, 429, 500, 503, 529])
def test_errors_come_back_as_they_are(url, provider, register, status):
    register()
    provider.status, provider.headers = status, {"retry-after": "7"}
    provider.pieces = [b'{"error": {"message": "So it is.", "type": "odd"}}']
    answer = httpx.post(url + "/chat/completions", json={"model": "model", "messages": HELLO})
    assert (answer.status_code, answer.content) == (status, provider.pieces[0])
    assert answer.headers["retry-after"] == "7"


@pytest.mark.slow
def test_a_key_that_is_repeated_in_an_error_or_an_answer_stays_here(
    app, url, provider, register, caplog
):
    caplog.set_level(logging.DEBUG)
    register()
    repeated = json.dumps({"error": {"message": f"Incorrect API key: {KEY}"}}).encode()
    for path in ("/chat/completions", "/v1/messages"):
        for status in (200, 400, 401, 403, 500):
            provider.status, provider.pieces = status, [repeated]
            provider.headers = {"x-request-id": "1", "x-echo": KEY}
            body = {"model": "model", "messages": HELLO, "max_tokens": 5}
            answer = httpx.post(url + path, json=body)
            assert KEY not in answer.text
            assert KEY not in str(answer.headers)
            if status in (401, 403):
                assert answer.status_code == status
                assert "refused this server's key in STANDIN_API_KEY" in answer.json()["detail"]
    assert KEY not in str(httpx.get(url + "/v2/models").json())
    assert KEY not in str(written(app, 10))
    assert KEY not in caplog.text


def test_a_redirection_is_not_followed(url, provider, register):
    register()
    provider.status, provider.headers = 307, {"location": provider.url + "/elsewhere"}
    for path in ("/chat/completions", "/v1/messages"):
        body = {"model": "model", "messages": HELLO, "max_tokens": 5}
        answer = httpx.post(url + path, json=body)
        assert answer.status_code == 502
        assert "redirect, which is not followed" in answer.json()["detail"]
    assert [scope["path"] for scope, _, _ in provider.requests] == ["/v1/chat/completions"] * 2


@pytest.mark.slow
def test_a_provider_that_cannot_be_reached_is_said_to_be_so(url, register):
    register("gone", url="http://127.0.0.1:9/v1")
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    with pytest.raises(openai.InternalServerError, match="provider of 'gone' cannot be reached"):
        client.chat.completions.create(model="gone", messages=HELLO)


@pytest.mark.slow
def test_a_stream_that_breaks_breaks_for_its_reader(url, provider, register):
    register()

    async def broken(scope, receive, send):
        headers = [(b"content-type", b"text/event-stream"), (b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": STREAM[0], "more_body": False})

    with serving(broken) as elsewhere:
        register("broken", url=elsewhere)
        body = {"model": "broken", "messages": HELLO, "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url + "/chat/completions", json=body)


def test_a_stream_that_breaks_is_one_line_of_the_servers_log(app, url, register, capsys):
    server_settings(app, app.state.parts.config, 1)

    async def broken(scope, receive, send):
        headers = [(b"content-type", b"text/event-stream"), (b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": STREAM[0], "more_body": True})
        raise UsageError("The provider itself breaks off.")

    with serving(broken) as elsewhere:
        register("broken", url=elsewhere)
        body = {"model": "broken", "messages": HELLO, "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url + "/chat/completions", json=body)
    # Servers of these tests may say at any time that they have started.
    lines = [line for line in capsys.readouterr().err.splitlines() if "INFO:" not in line]
    assert len(lines) == 2, lines
    assert lines[1].startswith("WARNING:")
    assert lines[1].endswith(
        "A response broke off: The provider of 'broken' sent an answer that broke off or cannot be decoded (ClientPayloadError)."
    )


def test_a_stream_without_counts_is_charged_by_its_length(
    app, url, provider, register, monkeypatch
):
    charged = []

    async def settle(budget, used):
        charged.append(used)

    monkeypatch.setattr(TokenBudget, "settle", settle)
    register()
    provider.headers = {"content-type": "text/event-stream"}
    provider.pieces = [STREAM[0] + b'"}}]}\n\n'] * 10
    body = {"model": "model", "messages": HELLO, "stream": True}
    httpx.post(url + "/chat/completions", json=body)
    (row,) = written(app)
    assert row.completion_tokens == 0  # What is not known is not made up.
    assert charged[-1] >= 10


# -- which models there are -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "kind"),
    [("openai", "openai_compatible"), ("anthropic", "claude"), ("gemini", "gemini")],
)
def test_registered_models_are_listed_with_the_agent_that_plays_them(url, register, dialect, kind):
    made = register("My Model", dialect=dialect)
    (listed,) = httpx.get(url + "/v2/models").json()["items"]
    assert listed == made
    assert (listed["model_name"], listed["sdk_agent_type"]) == ("my-model", kind)
    assert (listed["provider"]["name"], listed["is_trainable"]) == (dialect, False)


@pytest.mark.slow
def test_known_providers_models_are_listed_where_the_server_has_their_key(url, monkeypatch):
    assert httpx.get(url + "/v2/models").json()["items"] == []
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", "x")
    answer = httpx.get(url + "/v2/models").json()
    kinds = {item["model_name"]: item["sdk_agent_type"] for item in answer["items"]}
    assert kinds["claude-haiku-4-5"] == "claude"
    assert kinds["gpt-5"] == "openai"
    assert kinds["gemini-2.5-flash"] == "gemini"
    assert answer["total"] == len(kinds)
    for item in answer["items"]:
        found = httpx.get(url + "/v2/models/resolve", params={"model": item["model_name"]})
        assert found.json()["id"] == item["id"]


def test_a_known_providers_model_needs_a_key_and_no_registering(url, provider, monkeypatch):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="has no key for it. Set OPENAI_API_KEY"):
        client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url + "/v1")
    answer = client.chat.completions.create(model="gpt-5-mini", messages=HELLO)
    assert answer.choices[0].message.content == "hi"
    assert provider.requests[0][1][b"authorization"] == f"Bearer {KEY}".encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "file:///etc/passwd"},
        {"url": "http://user:pass@host/"},
        {"key_env": "HUD_API_KEY"},
        {"key_env": "HUD_DATABASE_URL"},
        {"key_env": "AWS_SECRET_ACCESS_KEY"},
        {"dialect": "smalltalk"},
    ],
)
def test_what_may_not_be_registered(register, fields):
    register(status=422, **fields)


@pytest.mark.slow
def test_a_providers_model_is_neither_trained_nor_pinned(url, register):
    made = register()
    train = f"{url}/v1/models/{made['id']}/train/optim-step"
    for answer in (
        httpx.post(train, json={"learning_rate": 1.0}),
        httpx.post(url + "/v2/models/fork", json={"source_model_id": made["id"], "name": "f"}),
        httpx.post(url + "/chat/completions", json={"model": "model@head", "messages": HELLO}),
    ):
        assert answer.status_code == 400, answer.text
        assert "provider" in answer.json()["detail"]


# -- asked in another dialect than their own ------------------------------------------------------------

CALL = '<tool_call>{"name": "look", "arguments": {"at": 7}}</tool_call>'
TURNS = ("<think>I have to look.</think>Looking." + CALL, "There are 7 apples.")
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A whole platform, as somebody else's provider."""
    from hud_platform.gateway.chat_formats import format_of

    app = make_platform(tmp_path_factory.mktemp("other"))
    record = app.state.parts.registry.model("tiny")
    app.tokenizer = format_of(record.folder).chat.tokenizer
    with serving(app) as url:
        app.url = url
        yield app
    app.state.parts.close()


@pytest.fixture
def engine(other):
    engine = ScriptedEngine(other.tokenizer, *TURNS, pieces=2)
    other.state.parts.__dict__["engine"] = engine
    return engine


def ask_chat(url, stream):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]

    def ask():
        asked = {"model": "other", "messages": messages, "tools": tools, "max_tokens": 90}
        if not stream:
            return client.chat.completions.create(**asked).choices[0].message
        with client.chat.completions.stream(**asked) as chunks:
            return chunks.get_final_completion().choices[0].message

    first = ask()
    (call,) = first.tool_calls
    messages.append({"role": "assistant", "content": first.content, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "seven apples"})
    arguments = json.loads(call.function.arguments)
    return first.content, call.function.name, arguments, ask().content


def ask_responses(url, stream):
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]
    settings = {"model": "other", "tools": tools, "instructions": "Be brief."}
    call, first, second = in_responses(client, stream, "seven apples", **settings)
    return first.output_text, call.name, json.loads(call.arguments), second.output_text


def ask_messages(url, stream):
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    messages = list(HELLO)

    def ask():
        asked = {
            "model": "other",
            "max_tokens": 90,
            "system": "Be brief.",
            "messages": messages,
            "tools": [{"name": "look", "description": "", "input_schema": SCHEMA}],
        }
        if not stream:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as events:
            return events.get_final_message()

    first = ask()
    text = "".join(block.text for block in first.content if block.type == "text")
    (call,) = [block for block in first.content if block.type == "tool_use"]
    said = [block.model_dump(exclude_none=True) for block in first.content]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "seven apples"}
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    return text, call.name, call.input, ask().content[-1].text


def ask_gemini(url, stream):
    client = genai.Client(api_key="k", http_options={"base_url": url})
    config = genai.types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[{"function_declarations": [{"name": "look", "parameters_json_schema": SCHEMA}]}],
        automatic_function_calling={"disable": True},
    )
    contents = [{"role": "user", "parts": [{"text": "hello"}]}]

    def ask():
        asked = {"model": "other", "contents": contents, "config": config}
        if not stream:
            return client.models.generate_content(**asked).candidates[0].content.parts
        answers = client.models.generate_content_stream(**asked)
        return [p for a in answers for c in a.candidates for p in c.content.parts or []]

    first = ask()
    text = "".join(part.text or "" for part in first)
    (call,) = [part.function_call for part in first if part.function_call]
    result = {"name": "look", "response": {"result": "seven apples"}}
    contents += [
        {"role": "model", "parts": [part.model_dump(exclude_none=True) for part in first]},
        {"role": "user", "parts": [{"function_response": result}]},
    ]
    return text, call.name, call.args, "".join(part.text or "" for part in ask())


CLIENTS = {
    "chat": ask_chat,
    "responses": ask_responses,
    "messages": ask_messages,
    "gemini": ask_gemini,
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_talks_to_every_provider(
    app, url, other, engine, register, client, dialect, stream
):
    register("other", url=other.url, dialect=dialect, upstream_model="tiny")
    told = CLIENTS[client](url, stream)
    assert told == ("Looking.", "look", {"at": 7}, "There are 7 apples.")
    first, second = (engine.tokenizer.decode(asked[2].prompt, False) for asked in engine.asked)
    assert first.startswith("<|system|>Be brief.")
    assert "look(at)" in first
    assert first.endswith("<|user|>hello<|end|><|assistant|>")
    assert second.endswith(f"Looking.{CALL}<|end|><|tool|>seven apples<|end|><|assistant|>")
    rows = written(app, 2)
    if (client, dialect, stream) == ("chat", "openai", True):
        return  # Untouched, and the client did not ask the provider for counts.
    assert [row.completion_tokens for row in rows] == [len(turn) for turn in engine.turns]
    assert [row.prompt_tokens for row in rows] == [len(asked[2].prompt) for asked in engine.asked]


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_a_providers_error_is_told_in_the_clients_dialect(url, provider, register, dialect):
    register(dialect=dialect)
    provider.status, provider.headers = 429, {"retry-after": "9"}
    provider.pieces = [b'{"error": {"message": "Slow down."}}']
    client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="Slow down") as caught:
        client.chat.completions.create(model="model", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "9"


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_what_a_provider_has_no_words_for_is_refused(url, provider, register, dialect):
    register(dialect=dialect)
    for fields in ({"logprobs": True}, {"n": 2}, {"return_token_ids": True}):
        body = {"model": "model", "messages": HELLO, **fields}
        answer = httpx.post(url + "/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
    assert provider.requests == []
