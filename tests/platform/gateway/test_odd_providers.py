"""Providers that fail, or answer against their documentation: a failure is an error in every client's dialect."""

import asyncio
import gzip
import json
import socket
import threading
import zlib

import httpx
import pytest
from tests.platform.gateway.gateway_server import serving
from tests.request_bodies import body_of

from hud_platform.application import create_app
from hud_platform.gateway import upstream
from hud_platform.process.config import PlatformConfig

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {}}}
EVENTS, JSON = "text/event-stream", "application/json"


class StandIn:
    """A provider that sends one body to every request."""

    def __init__(self):
        self.body, self.kind, self.status, self.encoding = b"", EVENTS, 200, ""

    async def __call__(self, scope, receive, send):
        await body_of(receive)
        headers = [(b"content-type", self.kind.encode())]
        if self.encoding:
            headers.append((b"content-encoding", self.encoding.encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


@pytest.fixture(scope="module")
def provider():
    standin = StandIn()
    with serving(standin) as url:
        standin.url = url
        yield standin


@pytest.fixture(scope="module")
def url(provider, tmp_path_factory):
    app = create_app(PlatformConfig(tmp_path_factory.mktemp("home")))
    with serving(app) as url:
        for dialect in ("openai", "anthropic", "gemini"):
            config = {"url": provider.url, "dialect": dialect, "upstream_model": "m"}
            body = {"name": dialect, "provider": config}
            answer = httpx.post(url + "/v2/models/provide", json=body, timeout=30)
            assert answer.status_code == 200, answer.text
        yield url
    app.state.parts.close()


def sse(*events):
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)


def chunk(delta, reason=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def part(name=None, arguments=None, **fields):
    return {"tool_calls": [{**fields, "function": {"name": name, "arguments": arguments}}]}


def candidate(*parts, **fields):
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **fields}]}


START = {"type": "message_start", "message": {"usage": {"input_tokens": 5}}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "half"}}


def used(piece, reason):
    use = {"type": "tool_use", "id": "x", "name": "look", "input": {}}
    return sse(
        START,
        {"type": "content_block_start", "index": 0, "content_block": use},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}},
        {"type": "message_stop"},
    )


def ask(url, provider, client, stream):
    """Return the status and body of a turn in a client's dialect."""
    functions = {
        "chat": [{"type": "function", "function": TOOL}],
        "responses": [{"type": "function", **TOOL}],
        "messages": [{"name": "look", "input_schema": TOOL["parameters"]}],
        "gemini": [{"functionDeclarations": [{"name": "look"}]}],
    }
    body = {"model": provider, "tools": functions[client], "stream": stream}
    match client:
        case "chat":
            path = "/v1/chat/completions"
            body["messages"] = HELLO
        case "responses":
            path = "/v1/responses"
            body["input"] = "hello"
        case "messages":
            path = "/v1/messages"
            body |= {"messages": HELLO, "max_tokens": 50}
        case "gemini":
            method = "streamGenerateContent?alt=sse" if stream else "generateContent"
            path = f"/v1beta/models/{provider}:{method}"
            body = {"contents": [{"parts": [{"text": "hello"}]}], "tools": body["tools"]}
    answer = httpx.post(url + path, json=body, timeout=60)
    return answer.status_code, answer.text


OTHERS = {
    "openai": ["messages", "gemini"],
    "anthropic": ["chat", "responses", "gemini"],
    "gemini": ["chat", "responses", "messages"],
}
PAIRS = [(server, client) for server, clients in OTHERS.items() for client in clients]
FAILURES = {
    "openai": {
        "empty": (b"", EVENTS),
        "cut": (sse(chunk({"content": "half"})), EVENTS),
        "only done": (b"data: [DONE]\n\n", EVENTS),
        "half a call, done": (
            sse(chunk(part("look", '{"at"', index=0, id="x"))) + b"data: [DONE]\n\n",
            EVENTS,
        ),
        "failed": (sse(chunk({"content": "half"}), chunk({}, "error")), EVENTS),
        "aborted": (sse(chunk({"content": "half"}), chunk({}, "abort")), EVENTS),
        "an error": (sse(chunk({"content": "half"}), {"error": {"message": "down"}}), EVENTS),
        "an error in words": (sse({"error": "down"}), EVENTS),
        "an error of vLLM": (sse({"object": "error", "message": "down", "code": 500}), EVENTS),
        "a whole error": (json.dumps({"error": {"message": "down"}}).encode(), JSON),
        "a page": (b"<html>maintenance</html>", "text/html"),
        "a page as a stream": (b"<html>maintenance</html>", EVENTS),
        "an empty page": (b"", "text/html"),
        "no object": (
            sse(chunk(part("look", "{oops", index=0, id="x")), chunk({}, "tool_calls")),
            EVENTS,
        ),
        "a call without a name": (
            sse(chunk(part(None, "{}", index=0, id="x")), chunk({}, "tool_calls")),
            EVENTS,
        ),
    },
    "anthropic": {
        "empty": (b"", EVENTS),
        "cut": (sse(START, TEXT), EVENTS),
        "without a reason": (sse(START, TEXT, {"type": "message_stop"}), EVENTS),
        "an error": (sse(START, TEXT, {"type": "error", "error": {"message": "down"}}), EVENTS),
        "a page": (b"<html>maintenance</html>", "text/html"),
        "a whole error": (json.dumps({"type": "error", "error": {"message": "x"}}).encode(), JSON),
        "no object": (used("{oops", "tool_use"), EVENTS),
    },
    "gemini": {
        "empty": (b"", EVENTS),
        "cut": (sse(candidate({"text": "half"})), EVENTS),
        "an error": (sse(candidate({"text": "half"}), {"error": {"message": "down"}}), EVENTS),
        "a page": (b"<html>maintenance</html>", "text/html"),
        "no object": (
            sse(candidate({"functionCall": {"name": "look", "args": [1]}}, finishReason="STOP")),
            EVENTS,
        ),
    },
}
ENDS = ("end_turn", '"finish_reason":"stop"', '"finishReason":"STOP"', "response.completed")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("server", "client"), PAIRS)
def test_a_providers_failure_is_no_end_of_a_turn(url, provider, server, client, stream):
    for failure, (body, kind) in FAILURES[server].items():
        provider.body, provider.kind = body, kind
        status, text = ask(url, server, client, stream)
        assert status >= 500 or (stream and '"error"' in text), (failure, status, text)
        assert not any(end in text for end in ENDS), (failure, text)


@pytest.mark.parametrize("code", [-1, 7, 101, 600, 999, 10**30])
def test_a_status_that_http_has_none_for_is_the_providers_failure(url, provider, code):
    provider.kind = EVENTS
    provider.body = sse({"error": {"message": "down", "code": code}})
    status, text = ask(url, "openai", "messages", False)
    assert (status, "down" in text) == (502, True)


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_a_status_line_that_http_has_none_for_is_the_providers_failure(url, client):
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = {"url": f"http://127.0.0.1:{server.getsockname()[1]}", "dialect": "openai"}
        body = {"name": f"odd-{client}", "provider": config}
        httpx.post(url + "/v2/models/provide", json=body, timeout=30).raise_for_status()

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer)
        thread.start()
        status, _ = ask(url, f"odd-{client}", client, False)
        thread.join()
    assert status == 502


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_end_fills_no_memory(url, provider, monkeypatch, stream):
    monkeypatch.setattr(upstream, "MOST_ANSWER_BYTES", 1 << 20)
    provider.kind = EVENTS
    provider.body = sse(*[chunk({"content": "x" * 10_000})] * 110)
    status, text = ask(url, "openai", "messages", stream)
    assert status == (200 if stream else 502)
    assert "is larger than 1 MiB" in text


async def test_many_events_at_once_leave_other_requests_their_turn(provider, tmp_path):
    """Hundreds of such streams held up all requests of the server for a minute."""
    provider.kind = EVENTS
    provider.body = sse(*[chunk({"content": "x"})] * 1000, chunk({}, "stop"))
    app = create_app(PlatformConfig(tmp_path))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hud") as client:
        config = {"url": provider.url, "dialect": "openai", "upstream_model": "m"}
        await client.post("/v2/models/provide", json={"name": "many", "provider": config})
        body = {"model": "many", "max_tokens": 5, "messages": HELLO, "stream": True}
        turn, turns = asyncio.create_task(client.post("/v1/messages", json=body)), 0
        while not turn.done():
            turns += 1
            await asyncio.sleep(0)
        assert (await turn).text.count("text_delta") == 1000
        assert turns > 1000
    app.state.parts.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", OTHERS["openai"])
def test_done_without_a_reason_ends_a_turn(url, provider, client, stream):
    provider.kind = EVENTS
    provider.body = sse(chunk({"content": "whole"})) + b"data: [DONE]\n\n"
    status, text = ask(url, "openai", client, stream)
    assert status == 200
    assert "whole" in text
    assert '"error"' not in text
    assert any(end in text for end in ("end_turn", "STOP"))


CALLS = {
    "no arguments": part("look", "", index=0, id="x"),
    "null": part("look", None, index=0, id="x"),
    "null as text": part("look", "null", index=0, id="x"),
    "an object": part("look", {}, index=0, id="x"),
    "encoded twice": part("look", '"{}"', index=0, id="x"),
    "no id": part("look", "{}", index=0),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", OTHERS["openai"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_in_any_form_is_a_call(url, provider, client, call, stream):
    provider.kind = EVENTS
    for reason in ("tool_calls", "stop", "function_call"):
        provider.body = sse(chunk(CALLS[call]), chunk({}, reason))
        status, text = ask(url, "openai", client, stream)
        assert status == 200
        assert '"look"' in text
        if client == "messages":
            assert '"stop_reason":"tool_use"' in text
        assert "error" not in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", OTHERS["openai"])
def test_alternating_pieces_of_calls_do_not_mix(url, provider, client, stream):
    provider.kind = EVENTS
    provider.body = sse(
        chunk(part("look", '{"at"', index=0, id="x")),
        chunk(part("look", '{"at"', index=1, id="y")),
        chunk({"content": "Wait."}),
        chunk(part(None, ": 10}", index=0)),
        chunk(part(None, ": 11}", index=1)),
        chunk({}, "tool_calls"),
    )
    status, text = ask(url, "openai", client, stream)
    assert status == 200
    plain = text.replace(" ", "")
    assert plain.index(":10}") < plain.index(":11}")
    assert "Wait." in text


@pytest.mark.parametrize(("server", "client"), [pair for pair in PAIRS if pair[0] == "openai"])
def test_a_call_that_was_cut_off_is_left_out_of_a_whole_answer(url, provider, server, client):
    provider.kind = EVENTS
    provider.body = sse(chunk(part("look", '{"at": ', index=0, id="x")), chunk({}, "length"))
    status, text = ask(url, server, client, stream=False)
    assert status == 200
    assert "look" not in text
    assert "max_tokens" in text.lower()


def test_a_whole_answer_in_place_of_a_stream_is_read(url, provider):
    whole = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    provider.kind, provider.body = JSON, json.dumps(whole).encode()
    status, text = ask(url, "openai", "messages", stream=False)
    assert (status, json.loads(text)["content"][0]["text"]) == (200, "hello")


WORDS = {
    "chat": ("context_length_exceeded", "maximum context length"),
    "responses": ("context_length_exceeded", "maximum context length"),
    "messages": ("invalid_request_error", "prompt is too long"),
    "gemini": ("INVALID_ARGUMENT", "exceeds the maximum number of tokens"),
}
SENTENCES = {
    "openai": "the request exceeds the available context size, try increasing it",
    "anthropic": "input length and `max_tokens` exceed context limit: 9 + 9 > 10",
    "gemini": "Unable to submit request because the input token count is 9 but model only supports up to 8.",
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("server", "client"), PAIRS)
def test_an_overflow_has_the_code_and_the_words_that_clients_look_for(
    url, provider, server, client, inside
):
    body = {"type": "error", "error": {"message": SENTENCES[server], "type": "invalid"}}
    provider.status = 200 if inside else 400
    provider.kind, provider.body = JSON, json.dumps(body).encode()
    try:
        status, text = ask(url, server, client, stream=False)
    finally:
        provider.status = 200
    assert status == 400
    assert all(words in text for words in WORDS[client])
    assert SENTENCES[server] in text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", ["chat", "messages", "gemini"])
def test_a_call_of_gemini_in_snake_case_is_a_call(url, provider, client, stream):
    call = {"function_call": {"name": "look", "args": {"at_once": 7}}}
    body = candidate(call, finish_reason="STOP")
    body["usage_metadata"] = {"prompt_token_count": 5, "candidates_token_count": 3}
    provider.kind = EVENTS if stream else JSON
    provider.body, provider.status = sse(body) if stream else json.dumps(body).encode(), 200
    status, text = ask(url, "gemini", client, stream)
    assert status == 200, text
    assert "at_once" in text
    assert "error" not in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_an_answer_that_is_packed_unasked_is_read(
    url, provider, monkeypatch, encoding, pack, client, stream
):
    monkeypatch.setattr(provider, "encoding", encoding)
    provider.kind = EVENTS
    provider.body = pack(sse(chunk({"content": "packed"}), chunk({}, "stop")) + b"data: [DONE]\n\n")
    status, text = ask(url, "openai", client, stream)
    assert (status, "packed" in text) == (200, True)


@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("encoding", ["gzip", "nothing-known"])
def test_an_answer_that_cannot_be_unpacked_is_the_providers_failure(
    url, provider, monkeypatch, encoding, client
):
    monkeypatch.setattr(provider, "encoding", encoding)
    provider.kind, provider.body = EVENTS, b"\x1f\x8b\x08 and no more"
    try:
        status, text = ask(url, "openai", client, False)
    except httpx.RemoteProtocolError:
        return  # The answer had begun.
    assert status == 502, text


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_a_change_of_the_protocol_is_no_answer(url, client):
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = {"url": f"http://127.0.0.1:{server.getsockname()[1]}", "dialect": "openai"}
        body = {"name": f"upgrading-{client}", "provider": config}
        httpx.post(url + "/v2/models/provide", json=body, timeout=30).raise_for_status()

        def upgrade():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
                )

        thread = threading.Thread(target=upgrade)
        thread.start()
        status, text = ask(url, f"upgrading-{client}", client, False)
        thread.join()
    assert (status, "which is no answer" in text) == (502, True), text
