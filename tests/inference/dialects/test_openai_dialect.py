"""Chat completions over HTTP: what is sent, what is read, what is retried."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from hud.errors import InfrastructureFault, UsageError
from hud.inference import retries as asking
from hud.inference.served_model import OpenAIChatModel
from hud.trace import Continuation, SamplingParams, ToolSpec

ASK = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]


def answer(**choice):
    message = {"role": "assistant", "content": "hello", **choice.pop("message", {})}
    return {
        "model": "m-1",
        "choices": [{"message": message, "finish_reason": "stop", **choice}],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


class Server:
    """Answers requests from a list, and remembers them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request, json.loads(request.content)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def model(self, **extra):
        return OpenAIChatModel(
            "m",
            base_url="http://server/v1/",
            api_key="key",
            extra=extra,
            transport=httpx.MockTransport(self),
        )


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(asking, "sleep", sleep)
    return waits


async def test_a_plain_turn():
    server = Server(answer())
    tool = ToolSpec(name="look", description="Looks.")
    completion = await server.model().complete(ASK, [tool], SamplingParams(), trace_id="a" * 32)
    request, body = server.requests[0]
    assert str(request.url) == "http://server/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer key"
    assert request.headers["trace-id"] == "a" * 32
    assert body == {
        "model": "m",
        "messages": ASK,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
    }
    assert completion.content == "hello"
    assert completion.model == "m-1"
    assert completion.sample is None
    assert (completion.usage.prompt_tokens, completion.usage.cached_tokens) == (9, 4)


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 7, "temperature": 0.5, "stop": ("x",), "reasoning_effort": "low"},
        {"max_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0},
        {"temperature": 0.0},
        {},
    ],
    ids=["others", "a model's own defaults", "zero", "nothing"],
)
async def test_what_was_set_is_sent_and_nothing_else(given):
    server = Server(answer())
    await server.model().complete(ASK, [], SamplingParams(**given))
    _, body = server.requests[0]
    sent = {name: value for name, value in body.items() if name not in ("model", "messages")}
    assert sent == {**given, **({"stop": ["x"]} if "stop" in given else {})}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said", "recorded"),
    [(0.3, None, 0.3), (None, 0.6, 0.6), (0.3, 0.25, 0.25), (0.0, None, 0.0), (None, None, 1.0)],
)
async def test_a_samples_temperature_is_what_the_server_says_or_what_was_asked(
    asked, said, recorded
):
    tokens = {
        "prompt_token_ids": [1],
        "token_ids": [7],
        "logprobs": {"content": [{"logprob": -0.5}]},
    }
    server = Server(answer(**tokens, **({} if said is None else {"temperature": said})))
    model = server.model(return_token_ids=True)
    completion = await model.complete(ASK, [], SamplingParams(temperature=asked))
    assert completion.sample.temperature == recorded


async def test_token_ids_come_back_and_prefixes_go_out():
    tokens = {
        "prompt_token_ids": [1, 2, 3, 4, 5, 6],
        "token_ids": [7, 8],
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
    }
    server = Server(answer(**tokens), answer(**{**tokens, "prompt_token_ids": [9, 9, 9, 9]}))
    model = server.model(return_token_ids=True)
    continuation = Continuation(token_ids=[1, 2, 3], covered=2)
    completion = await model.complete(ASK, [], SamplingParams(), continuation=continuation)
    _, body = server.requests[0]
    assert body["return_token_ids"] is body["logprobs"] is True
    assert (body["prompt_token_ids"], body["continuation_from"]) == ([1, 2, 3], 2)
    assert completion.sample.prompt_token_ids == [1, 2, 3, 4, 5, 6]
    assert completion.sample.output_token_ids == [7, 8]
    assert completion.sample.output_logprobs == [-0.5, -0.25]
    assert completion.extended
    split = await model.complete(ASK, [], SamplingParams(), continuation=continuation)
    assert not split.extended


async def test_ids_without_their_logprobs_are_refused():
    server = Server(answer(prompt_token_ids=[1], token_ids=[2, 3], logprobs={"content": []}))
    with pytest.raises(InfrastructureFault, match="2 token ids but 0 logprobs"):
        await server.model(return_token_ids=True).complete(ASK, [], SamplingParams())


async def test_tool_calls_and_unreadable_arguments():
    calls = [
        {"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "function", "function": {"name": "b", "arguments": "{oops"}},
        {"id": "3", "type": "function", "function": {"name": "c", "arguments": "[1]"}},
    ]
    server = Server(
        answer(
            message={"content": None, "tool_calls": calls, "reasoning_content": "hm"},
            finish_reason="tool_calls",
        )
    )
    completion = await server.model().complete(ASK, [], SamplingParams())
    assert [call.arguments for call in completion.tool_calls] == [{"x": 1}, "{oops", "[1]"]
    assert (completion.reasoning, completion.finish_reason) == ("hm", "tool_calls")


async def test_a_busy_server_is_asked_again_when_it_says(no_waiting):
    busy = httpx.Response(429, headers={"retry-after": "3"}, json={"detail": "slow down"})
    far = httpx.Response(503, headers={"retry-after": "900"}, json={})
    server = Server(busy, far, httpx.ConnectError("refused"), answer())
    completion = await server.model().complete(ASK, [], SamplingParams())
    assert completion.content == "hello"
    assert no_waiting[:2] == [3.0, 30.0]
    assert len(server.requests) == 4


async def test_a_server_that_stays_broken_is_an_infrastructure_fault():
    server = Server(*[httpx.Response(500, json={"error": {"message": "boom"}}) for _ in range(5)])
    with pytest.raises(InfrastructureFault, match="500: boom"):
        await server.model().complete(ASK, [], SamplingParams())


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_request_that_can_never_work_is_not_repeated(status):
    server = Server(httpx.Response(status, json={"detail": "context too long"}))
    with pytest.raises(UsageError, match=f"{status}: context too long"):
        await server.model().complete(ASK, [], SamplingParams())
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": []}'])
async def test_an_answer_that_is_none_is_an_infrastructure_fault(body):
    server = Server(*[httpx.Response(200, content=body) for _ in range(5)])
    with pytest.raises(InfrastructureFault, match="no choices"):
        await server.model().complete(ASK, [], SamplingParams())


async def test_connections_are_kept_between_requests():
    connections = 0
    payload = json.dumps(answer()).encode()

    async def serve(reader, writer):
        nonlocal connections
        connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(payload) + payload)
            await writer.drain()

    def quietly(reader, writer):
        async def guarded():
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        tasks.append(asyncio.ensure_future(guarded()))

    tasks: list[asyncio.Future] = []
    server = await asyncio.start_server(quietly, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    model = OpenAIChatModel("m", base_url=f"http://127.0.0.1:{port}")
    for _ in range(8):
        await asyncio.gather(*(model.complete(ASK, [], SamplingParams()) for _ in range(5)))
    assert connections == 5
    await model.aclose()
    await asyncio.gather(*tasks)
    server.close()
