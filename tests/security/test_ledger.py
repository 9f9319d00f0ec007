"""What a provider says of tokens, and what a caller calls a model, spoils neither the ledger of requests nor a key's limits."""

import http.server
import json
import threading
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from tests.security.server import AttackedServer, bearer

from hud.inference.dialects.registry import dialects
from hud.trace import new_id
from hud_platform.access.identity import Identity
from hud_platform.access.limits import Limits, TokenBudget, TooManyRequests
from hud_platform.gateway.ledger import Meter
from hud_platform.gateway.passthrough import reserve
from hud_platform.store import tables
from hud_platform.store.tables import LOCAL_TEAM

COUNTS = {
    "huge": 10**30,
    "beyond 64 bits": 2**64,
    "beyond 32 bits": 2**40,
    "negative": -(10**9),
    "fraction": 0.5,
    "text": "many",
    "truth": True,
    "nested": {"x": 1},
}
DEEP = 'data: {"choices": [], "usage": ' + "[" * 5_000 + "\n\ndata: [DONE]\n\n"
PATHS = {"passed on": "/v1/chat/completions", "translated": "/v1/messages"}


class Provider(http.server.ThreadingHTTPServer):
    """A provider in OpenAI's dialect that counts as it likes."""

    def __init__(self, counted, stream=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.server.asked.append(asked)
                usage = dict.fromkeys(
                    ("prompt_tokens", "completion_tokens", "total_tokens"), counted
                )
                usage["prompt_tokens_details"] = {"cached_tokens": counted}
                choice = {"index": 0, "finish_reason": "stop"}
                said = {"role": "assistant", "content": "hi"}
                if asked.get("stream"):
                    event = {"choices": [{**choice, "delta": said}], "usage": usage}
                    body = stream or f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"
                    kind = "text/event-stream"
                else:
                    body = json.dumps({"choices": [{**choice, "message": said}], "usage": usage})
                    kind = "application/json"
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def provider():
    made = []

    def begin(counted, stream=None):
        made.append(Provider(counted, stream))
        return f"http://127.0.0.1:{made[-1].server_port}/v1"

    begin.made = made
    yield begin
    for one in made:
        one.shutdown()
        one.server_close()


@pytest.fixture
def world(tmp_path):
    made = AttackedServer(tmp_path / "home")
    yield made
    made.parts.close()


def rows(world):
    world.parts.gateway.ledger.flush()
    with world.parts.store.read() as connection:
        return connection.execute(sa.select(tables.requests)).all()


def asking(model):
    return {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("counted", COUNTS.values(), ids=COUNTS)
async def test_counts_of_a_provider_are_bounded(world, provider, counted, path):
    admin = bearer(world.key())
    made = {"name": "odd", "provider": {"url": provider(counted)}}
    assert (await world.ask("POST", "/v2/models/provide", admin, made)).status == 200
    answer = await world.ask("POST", path, admin, asking("odd"))
    assert answer.status < 500 or answer.status == 502, answer.text
    await world.ask("POST", path, admin, asking("nothing"))  # Recorded in the same batch.
    found = rows(world)
    assert {row.model for row in found} == {"odd", "nothing"}
    for row in found:
        for count in (row.prompt_tokens, row.completion_tokens, row.cached_tokens):
            assert 0 <= count < 2**31


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_counts_that_are_nested_too_deep_are_none(world, provider, path):
    admin = bearer(world.key())
    made = {"name": "odd", "provider": {"url": provider(1, DEEP)}}
    assert (await world.ask("POST", "/v2/models/provide", admin, made)).status == 200
    answer = await world.ask("POST", path, admin, {**asking("odd"), "stream": True})
    assert answer.status in (200, 502)
    assert [row.model for row in rows(world)] == ["odd"]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_no_count_gives_tokens_back(world, provider, path):
    admin = bearer(world.key())
    for name, counted in (("gives", -(10**6)), ("takes", 60)):
        made = {"name": name, "provider": {"url": provider(counted)}}
        assert (await world.ask("POST", "/v2/models/provide", admin, made)).status == 200
    limited = bearer(world.key(tokens_per_minute=100))
    assert (await world.ask("POST", path, limited, asking("gives"))).status in (200, 502)
    assert (await world.ask("POST", path, limited, asking("takes"))).status == 200
    assert (await world.ask("POST", path, limited, asking("takes"))).status == 429


HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
GEMINI = "/v1beta/models/m:generateContent"
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
UNSTATED = {
    "chat": ("openai", CHAT, {"messages": HI}, ("max_completion_tokens",)),
    "null": ("openai", CHAT, {"messages": HI, "max_tokens": None}, ("max_completion_tokens",)),
    "minus one": ("openai", CHAT, {"messages": HI, "max_tokens": -1}, ("max_completion_tokens",)),
    "responses": ("openai", "/v1/responses", {"input": "hi"}, ("max_output_tokens",)),
    "messages": ("anthropic", "/v1/messages", {"messages": HI}, ("max_tokens",)),
    "gemini": ("gemini", GEMINI, CONTENTS, ("generationConfig", "maxOutputTokens")),
    "gemini's other spelling": (
        "gemini",
        GEMINI,
        {**CONTENTS, "generation_config": {"temperature": 0.5}},
        ("generationConfig", "maxOutputTokens"),
    ),
    "chat for gemini": ("gemini", CHAT, {"messages": HI}, ("generationConfig", "maxOutputTokens")),
    "chat for anthropic": ("anthropic", CHAT, {"messages": HI}, ("max_tokens",)),
    "gemini for chat": ("openai", GEMINI, CONTENTS, ("max_completion_tokens",)),
}


@pytest.mark.parametrize(("dialect", "path", "body", "place"), UNSTATED.values(), ids=UNSTATED)
async def test_an_answer_without_a_limit_is_bounded_to_what_the_key_has_left(
    world, provider, dialect, path, body, place
):
    where = {"url": provider(1), "dialect": dialect}
    made = {"name": "m", "provider": where}
    assert (await world.ask("POST", "/v2/models/provide", bearer(world.key()), made)).status == 200
    asked = provider.made[0].asked
    body = {"model": "m", **body}
    await world.ask("POST", path, bearer(world.key(tokens_per_minute=300)), body)
    await world.ask("POST", path, bearer(world.key()), body)
    bounded, free = asked
    bound = bounded
    for name in place:
        bound = bound[name]
    assert 200 < bound < 300
    assert "generation_config" not in bounded
    assert (bounded.get("max_tokens") or bound) == bound
    if "temperature" in body.get("generation_config", {}):
        assert bounded["generationConfig"]["temperature"] == 0.5
    if dialect != "anthropic":
        assert str(bound) not in json.dumps(free)
    refused = await world.ask("POST", path, bearer(world.key(tokens_per_minute=5)), body)
    assert refused.status == 429
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("dialect", "action", "values"),
    [
        ("chat_completions", "chat/completions", {"max_completion_tokens": 1, "max_tokens": 900}),
        ("chat_completions", "chat/completions", {"max_tokens": 300, "n": 3}),
        ("completions", "completions", {"max_tokens": 300, "best_of": 3, "n": 1}),
        ("completions", "completions", {"max_tokens": 300, "prompt": ["a", "b", "c"]}),
        ("gemini", "generateContent", {"generation_config": {"max_output_tokens": 900}}),
    ],
)
async def test_the_longest_answers_that_a_request_may_mean_are_reserved(
    world, dialect, action, values
):
    spoken = dialects()
    limits = Limits(world.parts.store, lambda: datetime.fromtimestamp(0.0, UTC))
    who = Identity(LOCAL_TEAM, frozenset(), new_id(), tokens_per_minute=1000)
    assert (
        await reserve(Meter(budget=TokenBudget(limits, who)), spoken[dialect], action, b"", values)
        is None
    )
    with pytest.raises(TooManyRequests):
        meter = Meter(budget=TokenBudget(limits, who))
        await reserve(meter, spoken["completions"], "completions", b"", {"max_tokens": 101})
    meter = Meter(budget=TokenBudget(limits, who))
    left = await reserve(meter, spoken["completions"], "completions", b"", {"n": 10})
    assert left == 10


@pytest.mark.parametrize("name", ["x" * 1_000_000, "a\0b", "\u202e" * 300, ""])
async def test_a_name_of_a_model_spoils_no_record(world, name):
    admin = bearer(world.key())
    for model in (name, "nothing"):
        answer = await world.ask("POST", "/v1/chat/completions", admin, asking(model))
        assert answer.status in (400, 404)
    found = {row.model for row in rows(world)}
    assert "nothing" in found
    assert max(map(len, found)) <= 300
    assert not any("\0" in model for model in found)


EVENTS = [
    7,
    "text",
    [],
    {"choices": 7},
    {"choices": [7]},
    {"choices": [{"delta": 7}]},
    {"choices": [{"delta": {"content": 7}}]},
    {"choices": [{"delta": {"content": {"a": 1}}}]},
    {"choices": [{"delta": {"content": "\ud83d"}}]},
    {"choices": [{"delta": {"refusal": 7}}]},
    {"choices": [{"delta": {"tool_calls": 7}}]},
    {"choices": [{"delta": {"tool_calls": [7]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": "x", "function": 7}]}}]},
    {
        "choices": [
            {"delta": {"tool_calls": [{"index": 0, "function": {"name": 7, "arguments": 7}}]}}
        ]
    },
    {"choices": [{"delta": {"content": "x"}, "finish_reason": 7}]},
    {"choices": [{"index": "x", "delta": {"content": "x"}}]},
    {"choices": [{"index": 10**30, "delta": {"content": "x"}}]},
    {"choices": [{"index": 10**7, "delta": {"content": "x"}}]},
    {"choices": [{"delta": {"content": "x"}, "logprobs": {"content": [7]}}]},
    {"usage": [], "choices": []},
    {"error": 7},
    {"error": {"code": "x", "message": {"a": 1}}},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: json.dumps(event)[:60])
async def test_an_event_that_is_none_is_the_provider_s_fault(world, provider, event, stream):
    admin = bearer(world.key())
    url = provider(1, f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")
    made = {"name": "odd", "provider": {"url": url}}
    assert (await world.ask("POST", "/v2/models/provide", admin, made)).status == 200
    answer = await world.ask("POST", "/v1/messages", admin, {**asking("odd"), "stream": stream})
    assert answer.status in (200, 502), answer.text
    assert "failed on this request" not in answer.text
