"""Sampling parameters at the edges of numbers: turns of all teams share a batch, and none of them is failed by another's."""

import asyncio

import pytest
from tests.security.server import AttackedServer, bearer

SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
ODD = [{"temperature": 1e-300}, {"temperature": 1e-40}, {"top_k": 2**70}]
named = pytest.mark.parametrize("odd", ODD, ids=str)


@pytest.fixture
async def server(tmp_path):
    made = AttackedServer(tmp_path)
    made.admin = bearer(made.key())
    body = {"name": "m", "texts": ["red green blue"] * 8, "sizes": SIZES}
    assert (await made.ask("POST", "/v2/models/create", made.admin, body)).status == 200
    yield made
    await made.parts.service("tinker").futures.close()
    await asyncio.to_thread(made.parts.close)


async def sampled(server, body):
    """Status and text of the answer to a request of Tinker's, once it is there."""
    whole = {"base_model": "m", "prompt": {"chunks": [{"tokens": [7, 8, 9]}]}, **body}
    began = await server.ask("POST", "/api/v1/asample", server.admin, whole)
    if began.status != 200:
        return began.status, began.text
    request = {"request_id": began.json()["request_id"]}
    found = await server.ask("POST", "/api/v1/retrieve_future", server.admin, request)
    return found.status, "" if "protobuf" in found.headers["content-type"] else found.text


@named
async def test_a_turn_of_the_same_batch_is_not_failed(server, odd):
    message = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
    bodies = [{**message, **odd}, message, message, {**message, **odd}]
    answers = await asyncio.gather(
        *(server.ask("POST", "/v1/chat/completions", server.admin, body) for body in bodies)
    )
    assert [answer.status for answer in answers] == [200] * 4


@named
async def test_nor_is_one_of_tinker_s(server, odd):
    bodies = [{"sampling_params": {"max_tokens": 20, **more}} for more in (odd, {}, {}, odd)]
    first, *others = await asyncio.gather(*(sampled(server, body) for body in bodies))
    assert others[:2] == [(200, "")] * 2
    assert first == (200, "") or (first[0] == 422 and "top_k" in first[1])


async def test_draws_of_a_prompt_at_a_tiny_temperature_are_the_likeliest(server):
    params = {"max_tokens": 1, "temperature": 1e-40}
    body = {"prompt_alt_tokens_k": 4, "sampling_params": params}
    assert await sampled(server, body) == (200, "")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"topk_prompt_logprobs": 290, "sampling_params": {}}, "topk_prompt_logprobs"),
        ({"sampling_params": {"stop": [f"s{n}" for n in range(17)]}}, "stop"),
    ],
)
async def test_what_would_fill_the_memory_or_hold_the_server_is_refused(server, body, named):
    # 40,000 tokens of 290 alternatives each: refused before the length is.
    prompt = {"chunks": [{"tokens": [7] * 40_000}]}
    status, said = await sampled(server, {"prompt": prompt, **body})
    assert status in (200, 422)
    assert named in said
    assert "at most" in said


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "stop"])
async def test_numbers_without_end_are_refused_or_change_nothing(server, name):
    value = [2**70, -(2**70)] if name == "stop" else 2**70
    status, said = await sampled(server, {"sampling_params": {"max_tokens": 4, name: value}})
    assert (status, said) == (200, "") or (status == 422 and name in said)


HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
CALLS = [
    ("/v1/chat/completions", HELLO, "max_tokens"),
    ("/v1/chat/completions", HELLO, "n"),
    ("/v1/chat/completions", HELLO, "seed"),
    ("/v1/messages", HELLO, "max_tokens"),
    ("/v1/messages/count_tokens", HELLO, "max_tokens"),
    ("/v1/responses", {"model": "m", "input": "hi"}, "max_output_tokens"),
    ("/v1/completions", {"model": "m", "prompt": "hi"}, "max_tokens"),
    ("/v1beta/models/m:generateContent", CONTENTS, "generationConfig"),
]


@pytest.mark.parametrize(("path", "body", "name"), CALLS, ids=lambda call: str(call)[:24])
@pytest.mark.parametrize("value", [10**400, -(10**400), 1e300], ids=["large", "small", "float"])
async def test_whole_numbers_beyond_floats_are_no_failure_of_the_server(
    server, path, body, name, value
):
    number = {"maxOutputTokens": value} if name == "generationConfig" else value
    answer = await server.ask("POST", path, server.admin, {**body, name: number})
    assert answer.status in (200, 400), answer.text
