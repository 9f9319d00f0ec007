"""The one retry policy: what is tried again, how long is waited, what ends a run and what ends a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import ContextOverflow, EnvironmentFault, InfrastructureFault, RefusedError
from hud.inference import retries as asking
from hud.inference.retries import (
    AnsweredError,
    BrokenAnswer,
    Provider,
    RetryPolicy,
    ask,
    http_trouble,
    retry_after,
)

WHERE = Provider("https://provider", "SOME_API_KEY")


class Refused(Exception):
    """An error status, as the providers' SDKs raise one."""

    def __init__(self, status, body=None, headers=None):
        super().__init__(f"Error code: {status}")
        self.status_code, self.body = status, body
        self.response = SimpleNamespace(headers=headers or {})


@pytest.fixture
def waits(monkeypatch):
    found = []

    async def sleep(seconds):
        found.append(seconds)

    monkeypatch.setattr(asking, "sleep", sleep)
    return found


def attempts(*outcomes):
    left = list(outcomes)

    async def attempt():
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return attempt, left


PASSING = [
    *(Refused(status) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529, 599)),
    httpx.ConnectError("refused"),
    httpx.ReadTimeout(""),
    httpx.RemoteProtocolError("peer closed connection without sending complete message body"),
    ConnectionResetError("reset"),
    TimeoutError(),
    BrokenAnswer("broke off"),
    AnsweredError("server_error", "Sorry."),
    AnsweredError(None, "Sorry."),
    AnsweredError("overloaded_error", "Overloaded"),
    json.JSONDecodeError("Expecting value", "<html>\n<body>", 0),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
async def test_what_may_pass_is_tried_again(error, waits):
    attempt, left = attempts(error, error, "answer")
    assert await ask(attempt, WHERE) == "answer"
    assert (left, len(waits)) == ([], 2)


@pytest.mark.parametrize("error", PASSING, ids=repr)
async def test_what_does_not_pass_is_infrastructure_in_one_sentence(error, waits):
    attempt, _ = attempts(*[error] * 5)
    with pytest.raises(InfrastructureFault) as raised:
        await ask(attempt, WHERE)
    told = str(raised.value)
    assert told.startswith("https://provider ")
    assert told.endswith(" (after 5 attempts).")
    assert "\n" not in told


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_what_every_run_would_be_refused_ends_the_job_at_once(status, waits):
    attempt, _ = attempts(Refused(status, {"error": {"message": "No."}}))
    with pytest.raises(RefusedError) as raised:
        await ask(attempt, WHERE)
    assert raised.value.everywhere
    assert waits == []
    assert ("check SOME_API_KEY" in str(raised.value)) == (status == 401)


async def test_no_quota_is_no_rush(waits):
    attempt, _ = attempts(Refused(429, {"error": {"message": "No.", "code": "insufficient_quota"}}))
    with pytest.raises(RefusedError) as raised:
        await ask(attempt, WHERE)
    assert raised.value.everywhere


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_one_requests_refusal_is_its_own(status, waits):
    attempt, _ = attempts(Refused(status, {"error": {"message": "Bad schema."}}))
    with pytest.raises(RefusedError, match=f"answered {status}: Bad schema.") as raised:
        await ask(attempt, WHERE)
    assert not raised.value.everywhere
    assert not isinstance(raised.value, ContextOverflow)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 8192 tokens."),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (400, "The input token count (1200000) exceeds the maximum number of tokens allowed."),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000"),
        (400, "The prompt has 600 tokens; the model's context holds 512."),
        (413, "request_too_large"),
        (400, "Your input exceeds the context window of this model."),
    ],
)
async def test_conversations_that_are_too_long_are_known_as_such(status, message, waits):
    attempt, _ = attempts(Refused(status, {"error": {"message": message}}))
    with pytest.raises(ContextOverflow):
        await ask(attempt, WHERE)


async def test_errors_inside_an_answer_that_do_not_pass_are_refusals(waits):
    attempt, _ = attempts(AnsweredError("invalid_prompt", "No."))
    with pytest.raises(RefusedError, match="broke off with invalid_prompt: No."):
        await ask(attempt, WHERE)


async def test_what_is_no_providers_error_passes_through(waits):
    for error in (ValueError("a bug"), EnvironmentFault("broken"), KeyError("x")):
        attempt, _ = attempts(error)
        with pytest.raises(type(error)) as raised:
            await ask(attempt, WHERE)
        assert raised.value is error


@pytest.mark.parametrize(
    "key", ["sk-proj-abcdef0123456789", "AIzaSyA-0123456789abc", "hud_0123456789ab"]
)
async def test_keys_are_taken_out_of_what_is_said(key, waits):
    attempt, _ = attempts(Refused(401, {"error": {"message": f"Incorrect API key: {key}."}}))
    with pytest.raises(RefusedError) as raised:
        await ask(attempt, WHERE)
    assert key not in str(raised.value)


async def test_waits_grow_and_are_no_longer_than_the_longest(waits):
    policy = RetryPolicy(attempts=9, first_wait_seconds=1, longest_wait_seconds=20)
    attempt, _ = attempts(*[Refused(500)] * 9)
    with pytest.raises(InfrastructureFault):
        await ask(attempt, WHERE, policy)
    assert len(waits) == 8
    for number, wait in enumerate(waits):
        assert 0.5 * min(2**number, 20) <= wait <= min(1.5 * 2**number, 20)


def test_servers_say_when_to_come_back_in_several_ways():
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert 55 < (retry_after({"retry-after": later}) or 0) <= 60
    for nonsense in ("-1", "nan", "soon", "", "Thu, 99 Foo"):
        assert retry_after({"retry-after": nonsense}) is None
    assert retry_after({}) is None


@pytest.mark.slow
@given(
    st.integers(400, 599),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["error", "message", "code", "type", "detail", "status"]), inner
            )
        ),
    ),
    st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text()),
)
def test_whatever_a_server_writes_is_one_sentence(status, body, headers):
    trouble = http_trouble(status, body, headers)
    assert trouble.description.startswith(f"answered {status}: ")
    assert "\n" not in trouble.description
    assert len(trouble.description) < 600
    assert trouble.retry_after is None or trouble.retry_after >= 0
