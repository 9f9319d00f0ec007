"""The port `Dialect`: what holds for every registered dialect, and for those in which providers are called."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from hud import agents
from hud.agents import types
from hud.agents.agent_kinds import SERVED, kind_of_model
from hud.agents.providers.agent_kind import agent_kinds
from hud.errors import UsageError
from hud.inference.dialects.codec import Refusal
from hud.inference.dialects.dialect import ListedModel, ProviderDialect
from hud.inference.dialects.events import Begun, Finished, TextDelta, turns_of
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.registry import (
    dialect_of,
    dialects,
    named_providers,
    provider_dialect,
    provider_dialects,
)
from hud.inference.dialects.request import GenerationRequest
from hud.inference.dialects.server_sent_events import data_of
from hud.inference.retries import http_trouble, message_of
from hud.trace import SamplingParams, Usage

USAGE = Usage(prompt_tokens=21, completion_tokens=3, cached_tokens=5)
EVENTS = [Begun(21), TextDelta(0, "Seven "), TextDelta(0, "apples."), Finished(0, "stop", USAGE)]
TURNS = turns_of(EVENTS, 1)
MODELS = [
    ListedModel("own", "Own", "openhud", datetime(2026, 1, 1, tzinfo=UTC), 4096),
    ListedModel("far", "Far", "somebody", datetime(2026, 1, 2, tzinfo=UTC), None),
]
ASKED = GenerationRequest(
    model="own",
    messages=[
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
    ],
    sampling=SamplingParams(max_tokens=40, temperature=0.5),
)

every_dialect = pytest.mark.parametrize("dialect", dialects().values(), ids=dialects())
every_provider = pytest.mark.parametrize(
    "dialect", provider_dialects().values(), ids=provider_dialects()
)


def counts(usage):
    return usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens


def written(dialect, model="own"):
    """Return a stream of the turn, as the dialect's server writes it."""
    writer = dialect.codec.writer(Fields({}), ASKED, model)
    return b"".join([*(writer.write(event) for event in EVENTS), writer.end()])


def data_in(stream):
    async def pieces():
        yield stream

    async def read():
        return [data async for data in data_of(pieces())]

    return asyncio.run(read())


# -- served by the gateway ---------------------------------------------------------------------------------


@every_dialect
def test_its_routes_are_described(dialect):
    assert dialect.routes
    for route in dialect.routes:
        assert route.name.isidentifier()
        assert route.description.endswith(".")
        assert all(path.startswith("/") for path in route.paths)
        assert route.method in ("GET", "POST", "DELETE")


def test_no_two_dialects_have_a_route():
    places = [
        (route.method, path)
        for dialect in dialects().values()
        for route in dialect.routes
        for path in route.paths
    ]
    assert len(places) == len(set(places))


@every_dialect
def test_it_is_known_by_its_paths_and_by_the_headers_of_its_clients(dialect):
    for prefix in dialect.prefixes:
        assert dialect_of(f"{prefix}", set()) is dialect
    for mark in dialect.marks:
        assert dialect_of("/models", {b"host", mark}) is dialect
        assert mark == mark.lower()


def test_a_request_that_says_nothing_is_a_chat_completion():
    assert dialect_of("/models", {b"host"}) is dialects()["chat_completions"]


@every_dialect
def test_an_error_has_the_sentence_twice_and_an_overflow_its_words(dialect):
    sentence = "The model holds 512 tokens."
    for status in (400, 401, 403, 404, 413, 429, 500, 503, 504):
        body = dialect.codec.error(Refusal(status, sentence))
        assert body["detail"] == sentence == message_of({**body, "detail": None})
    overflow = dialect.codec.error(Refusal(400, sentence, too_long=True))
    assert http_trouble(400, overflow, {}).too_long


@every_dialect
def test_models_are_listed_with_their_names(dialect):
    for models in (MODELS, []):
        listed = json.dumps(dialect.models(models))
        assert all(model.name in listed for model in models)
    own, far = map(dialect.model, MODELS)
    assert "4096" in json.dumps(own)
    assert "4096" not in json.dumps(far)


@every_dialect
def test_a_count_and_a_deletion_are_answers(dialect):
    assert 7 in dialect.counted(7).values()
    assert dialect.deleted("r1") | {"id": "r1", "deleted": True} == dialect.deleted("r1")
    assert dialect.continued(Fields({})) is None


@every_dialect
def test_an_answer_and_a_stream_hold_the_text_and_the_counts(dialect):
    answer = dialect.codec.unstreamed(Fields({}), ASKED, "own", TURNS)
    assert "Seven apples." in json.dumps(answer)
    (field,) = [name for name in dialect.usage_fields if name in answer]
    read = dialect.token_counts(answer[field])
    assert (read.prompt, read.completion, read.cached) == counts(USAGE)
    stream = written(dialect)
    assert tuple(text for text in (b"Seven ", b"apples.") if text in stream) == (
        b"Seven ",
        b"apples.",
    )


@every_dialect
def test_a_stream_that_fails_says_why(dialect):
    writer = dialect.codec.writer(Fields({}), ASKED, "own")
    stream = b"".join(map(writer.write, EVENTS[:2])) + writer.fail(Refusal(503, "It broke."))
    assert b"It broke." in stream


@every_dialect
def test_an_answer_that_is_stored_has_an_id_and_its_text(dialect):
    writer = dialect.codec.writer(Fields({}), ASKED, "own")
    for event in EVENTS:
        writer.write(event)
    writer.end()
    whole = dialect.codec.unstreamed(Fields({}), ASKED, "own", TURNS)
    if dialect.stored_turn(Fields({}), whole) is None:
        assert writer.answer is None
        return
    for answer in (whole, writer.answer):
        assert answer["id"]
        (message,) = dialect.stored_turn(Fields({}), answer)
        assert (message["role"], message["content"]) == ("assistant", "Seven apples.")


# -- passed to a provider ----------------------------------------------------------------------------------


@every_dialect
@pytest.mark.parametrize("value", [None, -1, "many", 2.5, True, []])
def test_a_limit_that_is_none_is_replaced(dialect, value):
    for action in {getattr(route.call, "action", "") for route in dialect.routes}:
        values = {"model": "own", "kept": [1], **dict.fromkeys(dialect.limits, value)}
        stated = dialect.stated_bounds(action, values)
        assert (stated.tokens, stated.answers) == (None, 1)
        bounded = dialect.bounded(action, values, 99)
        assert dialect.stated_bounds(action, bounded).tokens == 99
        assert (bounded["model"], bounded["kept"]) == ("own", [1])


@every_dialect
def test_counts_may_be_missing(dialect):
    assert dialect.token_counts({}) == (0, 0, 0, 0)


# -- providers of the dialect ------------------------------------------------------------------------------


def test_a_family_without_a_package_is_refused_with_those_that_there_are():
    with pytest.raises(
        UsageError, match=r"no dialect 'smalltalk': there are anthropic, gemini, openai"
    ):
        provider_dialect("smalltalk")


@every_provider
def test_a_call_has_its_address_and_its_key(dialect):
    url = dialect.client.url("https://models.example", "far", "act")
    assert url.startswith("https://models.example/")
    assert url.endswith("act")
    assert ("far" in url) == dialect.model_in_path
    assert dialect.client.credentials(None) == {}
    ((header, value),) = dialect.client.credentials("secret").items()
    assert header == (dialect.key_header or b"authorization").decode()
    assert "secret" in value


@every_provider
@pytest.mark.parametrize("stream", [True, False])
def test_a_request_reads_as_it_was_meant(dialect, stream):
    wire = dialect.client.request("own", GenerationRequest(**{**vars(ASKED), "stream": stream}))
    read = dialect.codec.read(Fields({"model": "own", **wire.body}))
    assert [(message["role"], message["content"]) for message in read.messages] == [
        ("system", "Be brief."),
        ("user", "How many?"),
    ]
    assert (read.sampling.max_tokens, read.sampling.temperature) == (40, 0.5)
    assert dialect.stated_bounds(wire.action, wire.body).tokens == 40


@every_provider
def test_an_answer_reads_as_it_was_written(dialect):
    wire = dialect.client.request("own", ASKED)
    completion = wire.completion(dialect.codec.unstreamed(Fields({}), ASKED, "own", TURNS))
    assert (completion.content, completion.finish_reason) == ("Seven apples.", "stop")
    assert counts(completion.usage) == counts(USAGE)


@every_provider
def test_a_stream_reads_as_it_was_written(dialect):
    wire = dialect.client.request("own", GenerationRequest(**{**vars(ASKED), "stream": True}))
    reader = wire.reader()
    body = Fields({**wire.body, "server_sent_events": True})
    writer = dialect.codec.writer(body, ASKED, "own")
    stream = b"".join([*(writer.write(event) for event in EVENTS), writer.end()])
    items = [wire.done if data == b"[DONE]" else json.loads(data) for data in data_in(stream)]
    events = [event for item in items for event in reader.read(item)] + reader.end()
    (turn,) = turns_of(events, 1)
    assert (turn.text, turn.finished.reason) == ("Seven apples.", "stop")
    assert counts(reader.usage) == counts(USAGE)


@every_provider
def test_its_registered_models_are_played_by_an_agent_that_there_is(dialect):
    assert dialect.agent in agent_kinds()


@pytest.mark.parametrize(
    ("provider", "dialect"),
    named_providers(),
    ids=[provider.name for provider, _ in named_providers()],
)
def test_a_provider_s_models_are_known_by_their_names(provider, dialect):
    assert isinstance(dialect, ProviderDialect)
    assert provider.home.url.startswith("https://")
    assert all(variable.endswith("API_KEY") for variable in provider.home.key_variables)
    assert all(name.startswith(provider.prefixes) for name in provider.listed)
    assert {kind_of_model(name) for name in provider.listed} == {provider.agent}


# -- agents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", agent_kinds().values(), ids=agent_kinds())
def test_an_agent_type_has_its_public_names(kind):
    assert getattr(agents, kind.agent).__name__ == kind.agent
    assert getattr(types, kind.settings.__name__) is kind.settings
    assert kind.narrows is None or kind.narrows in agent_kinds()
    assert (kind.models is None) == (kind.name == SERVED or kind.program)
