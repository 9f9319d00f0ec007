"""The number of requests in flight: it finds the server's limit, by refusals and headers, and loses no request to it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.virtual_clock import run_virtually

from hud.errors import InfrastructureFault
from hud.inference.endpoints import Endpoint
from hud.inference.request_window import RequestWindow, limited_windows, seconds_until
from hud.inference.retries import Provider, RetryPolicy, ask, http_trouble
from hud.inference.served_model import OpenAIChatModel, ServedModel
from hud.trace import SamplingParams
from hud_integrations.anthropic.codec import AnthropicCodec

HELLO = [{"role": "user", "content": "hello"}]
CHAT = {"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
MESSAGE = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}


class LimitedProvider:
    """Stub of a provider: at most `at_once` requests, and `per_second` from a bucket of `burst`.

    It refuses as OpenAI (429, `retry-after-ms`, `x-ratelimit-*`) or Anthropic (429 and 529, `retry-after`) document it.
    """

    def __init__(self, dialect, *, at_once=10**6, per_second=None, burst=10, headers=True):
        self.dialect, self.at_once, self.rate, self.burst = dialect, at_once, per_second, burst
        self.headers = headers
        self.busy = self.refused = 0
        self.left, self.at = float(burst), 0.0
        self.ends = []

    async def __call__(self, request):
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.001)
        if self.busy >= self.at_once:
            self.refused += 1
            return self.refusal(529 if self.dialect == "anthropic" else 429, {})
        headers = {}
        if self.rate is not None:
            self.left = min(self.burst, self.left + (loop.time() - self.at) * self.rate)
            self.at = loop.time()
            if self.left < 1:
                self.refused += 1
                seconds = (1 - self.left) / self.rate
                if self.dialect == "anthropic":
                    return self.refusal(429, {"retry-after": f"{seconds:.3f}"})
                return self.refusal(429, {"retry-after-ms": f"{1000 * seconds:.0f}"})
            self.left -= 1
            headers = self.bucket() if self.headers else {}
        self.busy += 1
        await asyncio.sleep(0.03)
        self.busy -= 1
        self.ends.append(loop.time())
        answer = MESSAGE if self.dialect == "anthropic" else CHAT
        return httpx.Response(200, headers=headers, json=answer)

    def refusal(self, status, headers):
        error = {"type": "overloaded_error", "message": "Overloaded"}
        if status == 429:
            error = {"type": "rate_limit_error", "message": "Too many requests."}
        return httpx.Response(status, headers=headers, json={"type": "error", "error": error})

    def bucket(self):
        seconds = (self.burst - self.left) / self.rate
        if self.dialect == "anthropic":
            form = "anthropic-ratelimit-requests-{}"
            reset = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        else:
            form, reset = "x-ratelimit-{}-requests", f"{1000 * seconds:.0f}ms"
        values = {"limit": self.burst, "remaining": int(self.left), "reset": reset}
        return {form.format(name): str(value) for name, value in values.items()}

    def model(self, name="m"):
        url, transport = "https://provider.test", httpx.MockTransport(self)
        if self.dialect == "anthropic":
            endpoint = Endpoint(url, "k", Provider(url))
            return ServedModel(name, endpoint, AnthropicCodec(), transport=transport)
        return OpenAIChatModel(name, base_url=url, transport=transport)

    def rate_between(self, first, last):
        """Answers a second, from one answer to another."""
        return (last - first) / (self.ends[last] - self.ends[first])


async def play(provider, runs, width):
    """Have `runs` agents take a turn each, `width` at a time; returns those lost, and the window."""
    model, left, lost = provider.model(), iter(range(runs)), []

    async def work():
        for _ in left:
            try:
                await model.complete(HELLO, [], SamplingParams())
            except InfrastructureFault as fault:
                lost.append(str(fault))

    await asyncio.gather(*(work() for _ in range(width)))
    await model.aclose()
    return lost, limited_windows().get("m")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("at_once", [1, pytest.param(4, marks=pytest.mark.slow), 10])
def test_the_number_in_flight_finds_a_limit_of_requests_at_once(dialect, at_once):
    provider = LimitedProvider(dialect, at_once=at_once)
    lost, window = run_virtually(play(provider, 600, width=32))
    assert (lost, len(provider.ends)) == ([], 600)
    assert 0.6 * at_once < window.limit < at_once + 2
    # A turn takes 0.031 s.
    assert provider.rate_between(200, 500) > 0.75 * at_once / 0.031


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("headers", [True, False])
@pytest.mark.parametrize("per_second", [5, 50])
def test_a_rate_is_kept_and_no_run_is_lost_to_it(dialect, headers, per_second):
    provider = LimitedProvider(dialect, per_second=per_second, headers=headers)
    lost, _ = run_virtually(play(provider, 300, width=24))
    assert (lost, len(provider.ends)) == ([], 300)
    assert provider.rate_between(100, 250) > 0.75 * per_second
    # Without headers a request learns of the rate by its refusal alone.
    assert provider.refused < 300 * (0.5 if headers else 3)


def test_a_server_without_limits_is_sent_everything():
    provider = LimitedProvider("openai")
    lost, window = run_virtually(play(provider, 100, width=32))
    assert (lost, window, provider.refused) == ([], None, 0)


async def test_a_server_that_refuses_everything_ends_the_run():
    attempts = 0

    class Refused(Exception):
        status_code, body = 429, {"error": {"message": "No."}}

    async def attempt():
        nonlocal attempts
        attempts += 1
        raise Refused

    window = RequestWindow()
    policy = RetryPolicy(attempts=3, first_wait_seconds=0.001)
    with pytest.raises(InfrastructureFault, match="after 3 attempts"):
        await ask(attempt, Provider("https://p"), policy, window)
    assert (attempts, window.limit, window.in_flight) == (3, 1.0, 0)


async def test_a_cancelled_request_leaves_its_slot_to_the_next():
    window = RequestWindow()
    window.limit = 1.0
    release = asyncio.Event()

    async def hold():
        async with window.slot():
            await release.wait()

    held, waiting, last = (asyncio.create_task(hold()) for _ in range(3))
    await asyncio.sleep(0)
    assert (window.in_flight, window.waiting) == (1, 2)
    waiting.cancel()
    held.cancel()
    await asyncio.gather(held, waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert (window.in_flight, window.waiting) == (1, 0)
    release.set()
    await last
    assert window.in_flight == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
async def test_the_limit_stays_between_one_and_the_demand(data):
    """Whatever is answered, refused or cancelled, in whatever order: no slot is lost, and every request ends."""
    width = data.draw(st.integers(1, 12))
    outcomes = data.draw(st.lists(st.sampled_from("aaarc"), min_size=1, max_size=80))
    window = RequestWindow()
    left = iter(outcomes)

    async def work():
        for outcome in left:
            async with window.slot() as slot:
                assert window.in_flight <= width
                await asyncio.sleep(0)
                if outcome == "a":
                    slot.answered()
                elif outcome == "r":
                    slot.refused()
            if window.refusals:
                assert 1 <= window.limit <= width + 1
                assert int(window.limit) <= width

    workers = [asyncio.create_task(work()) for _ in range(width)]
    for _ in range(outcomes.count("c") % width):
        await asyncio.sleep(0)
        workers.pop().cancel()
    await asyncio.gather(*workers)
    await asyncio.sleep(0)
    assert (window.in_flight, window.waiting) == (0, 0)


@settings(max_examples=25, deadline=None)
@given(capacity=st.integers(1, 20), extra=st.integers(0, 40))
async def test_the_limit_converges_to_the_servers_capacity(capacity, extra):
    window, busy, limits = RequestWindow(), 0, []
    width = capacity + extra
    left = iter(range(60 * width))

    async def work():
        nonlocal busy
        for _ in left:
            async with window.slot() as slot:
                if busy >= capacity:
                    slot.refused()
                    continue
                busy += 1
                await asyncio.sleep(0)
                busy -= 1
                slot.answered()
                limits.append(window.limit)

    await asyncio.gather(*(work() for _ in range(width)))
    if window.refusals == 0:
        assert extra == 0
        return
    settled = limits[len(limits) // 2 :]
    assert max(settled) < capacity + 2
    assert sum(settled) / len(settled) > 0.6 * capacity


@pytest.mark.parametrize(
    ("text", "seconds"), [("6m0s", 360), ("120ms", 0.12), ("1h2m3s", 3723), ("1.5", 1.5), ("2s", 2)]
)
def test_durations_of_headers(text, seconds):
    assert seconds_until(text) == pytest.approx(seconds)


def test_dates_of_headers():
    assert seconds_until("2000-01-01T00:00:00Z") == 0
    assert seconds_until("2999-01-01T00:00:00Z") > 1e9
    with pytest.raises(ValueError, match="soon"):
        seconds_until("soon")


@pytest.mark.parametrize(
    ("status", "crowded"), [(429, True), (529, True), (503, True), (500, False), (400, False)]
)
def test_refusals_for_crowding(status, crowded):
    assert http_trouble(status, {"error": {"message": "x"}}, {}).crowded == crowded
    no_quota = {"error": {"message": "x", "code": "insufficient_quota"}}
    assert not http_trouble(429, no_quota, {}).crowded
