"""One request neither ends the server nor holds up those of others."""

import json

import pytest
from tests.security.server import AttackedServer, bearer
from tests.security.things import SECRET, make

pytestmark = pytest.mark.timeout(120)
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
TURN = {"model": f"{SECRET}-model", "max_tokens": 1}
SAYS = {"role": "user", "content": "a"}


@pytest.fixture
def server(tmp_path):
    return AttackedServer(tmp_path / "home")


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 10**9},
        {"hidden": 1 << 20},
        {"hidden": 4096, "layers": 128},
        {"layers": 10**9},
        {"heads": 0},
        {"kv_heads": -2},
        {"kv_heads": 0},
        {"max_context": 10**12},
        {"max_context": 0},
        {"hidden": 10**30},
        {"unknown": 1},
        {"vocab_size": 0.5},
    ],
    ids=str,
)
async def test_sizes_that_would_end_the_server_are_refused(server, changes):
    body = {"name": "large", "texts": ["a b c"], "sizes": {**SIZES, **changes}}
    answer = await server.ask("POST", "/v2/models/create", bearer(server.key(scope="train")), body)
    assert answer.status in (400, 422), answer.text


@pytest.mark.slow
async def test_texts_that_would_end_the_server_are_refused(server):
    body = {"name": "large", "texts": ["a " * 10_000_000], "sizes": SIZES}
    answer = await server.ask("POST", "/v2/models/create", bearer(server.key(scope="train")), body)
    assert answer.status == 400
    assert "characters" in answer.text


async def test_a_seed_that_is_none_is_refused(server):
    for seed in (-1, 10**30):
        body = {"name": "odd", "texts": ["a b c"], "sizes": SIZES, "seed": seed}
        answer = await server.ask("POST", "/v2/models/create", bearer(server.key()), body)
        assert answer.status == 422, answer.text


@pytest.mark.parametrize(
    "config",
    [{"lora_rank": 10**9}, {"lora_rank": 4097}, {"lora_seed": 1 << 64}, {"lora_alpha": 1e400}],
    ids=str,
)
async def test_adapters_that_would_fill_the_memory_are_refused(server, config):
    headers = bearer(server.key(scope="train"))
    settings = {"training": "lora", **config}
    body = {"name": "m", "texts": ["a b c"], "sizes": SIZES, "config": settings}
    answer = await server.ask("POST", "/v2/models/create", headers, body, seconds=60)
    assert answer.status == 422, answer.text
    session = (await server.ask("POST", "/api/v1/create_session", headers, {})).json()
    shape = {name.removeprefix("lora_"): value for name, value in config.items()}
    made = {"session_id": session["session_id"], "model_seq_id": 1, "base_model": "m"}
    answer = await server.ask(
        "POST", "/api/v1/create_model", headers, {**made, "lora_config": {"rank": 2, **shape}}
    )
    assert answer.status == (200 if "alpha" in shape else 422), answer.text


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**TURN, "messages": [SAYS] * 100_000}),
        (
            "/v1/chat/completions",
            {**TURN, "messages": [{**SAYS, "content": [{"type": "text", "text": "a"}] * 50_000}]},
        ),
        (
            "/v1/chat/completions",
            {
                **TURN,
                "messages": [SAYS],
                "tools": [{"type": "function", "function": {"name": "a"}}] * 50_000,
            },
        ),
        ("/v1/messages", {**TURN, "messages": [SAYS] * 100_000}),
        ("/v1/responses", {"model": TURN["model"], "input": [SAYS] * 100_000}),
        (
            f"/v1beta/models/{SECRET}-model:generateContent",
            {"contents": [{"parts": [{"text": "a"}]}] * 50_000},
        ),
        (
            "/v1/chat/completions",
            {
                **TURN,
                "messages": [SAYS],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": deep(150)},
                },
            },
        ),
        (
            "/v1/messages",
            {**TURN, "messages": [SAYS], "tools": [{"name": "a", "input_schema": deep(150)}]},
        ),
    ],
)
async def test_turns_of_too_many_or_too_deep_values_are_refused(server, path, body):
    headers = bearer(server.key())
    await make(server, headers)
    answer = await server.ask("POST", path, headers, json.dumps(body).encode())
    assert answer.status == 400
    assert "The request body" in answer.text


@pytest.mark.slow
async def test_an_upload_names_its_first_problems_alone(server):
    headers = bearer(server.key())
    await make(server, headers)
    tasks = [{"name": f"row {n}", "env": {"name": "shop"}, "task_id": "buy"} for n in range(20_000)]
    body = {"taskset_name": "large", "tasks": tasks}
    answer = await server.ask("POST", "/v2/tasks/upload", headers, body)
    assert answer.status == 400
    lines = answer.json()["detail"].splitlines()
    assert len(lines) == 51
    assert lines[-1] == "These are the first 50 problems; there are more."


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com:99999/",
        "http://a:b/",
        f"http://{'a' * 300}.com/",
        "http://a..b/",
        "http://:80/",
    ],
)
async def test_a_provider_s_address_that_is_none_is_refused(server, url):
    body = {"name": "odd", "provider": {"url": url}}
    answer = await server.ask("POST", "/v2/models/provide", bearer(server.key(server.others)), body)
    assert answer.status == 400
    assert "is no URL" in answer.text
