"""What goes on for long ends with its key: pages' events, answers of the gateway, and WebSockets."""

import asyncio
import threading
import time

import anthropic
import httpx
import openai
import pytest
from tests.platform.gateway.gateway_server import SIZES, TEXTS, ScriptedEngine, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from hud_platform.access import admission
from hud_platform.access.web_sessions import COOKIE
from hud_platform.application import create_app
from hud_platform.environments.build_queue import Builds
from hud_platform.gateway.chat_formats import format_of
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import TokenDelta
from hud_platform.store.tables import LOCAL_TEAM

pytestmark = pytest.mark.timeout(60)
HELLO = [{"role": "user", "content": "hello"}]
MOST_SECONDS = 5.0


class EndlessEngine(ScriptedEngine):
    """Draws the same word until nobody listens."""

    async def stream(self, model, checkpoint, request):
        self.asked.append(request)
        try:
            while True:
                yield TokenDelta(self.turns[0][:1], [-0.5], None, 1, "c" * 32)
                await asyncio.sleep(0.01)
        finally:
            self.closed += 1


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = create_app(PlatformConfig(tmp_path_factory.mktemp("home"), keys=True))
    platform = app.state.parts
    record = platform.registry.of(LOCAL_TEAM).create("tiny", TEXTS, sizes=SIZES)
    tokenizer = format_of(record.folder).chat.tokenizer
    platform.__dict__["engine"] = EndlessEngine(tokenizer, "words")
    yield app
    platform.close()


@pytest.fixture(scope="module")
def url(app):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "EVERY_SECONDS", 0.1)
        with serving(app) as url:
            yield url


@pytest.fixture
def key(app):
    return app.state.parts.keys.mint("k", LOCAL_TEAM, scopes=("admin",))


@pytest.fixture
def revoke(app, key):
    return lambda: app.state.parts.keys.revoke(LOCAL_TEAM, key[0].id)


@pytest.fixture(autouse=True)
def soon():
    started = time.monotonic()
    yield
    assert time.monotonic() - started < MOST_SECONDS


def test_openai_s_stream_ends_with_an_error(url, key, revoke):
    client = openai.OpenAI(base_url=url, api_key=key[1], max_retries=0)
    stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    next(stream)
    revoke()
    with pytest.raises(openai.APIError, match="revoked"):
        list(stream)


def test_anthropic_s_stream_ends_with_an_error(url, key, revoke):
    client = anthropic.Anthropic(base_url=url, api_key=key[1], max_retries=0)
    stream = client.messages.create(model="tiny", messages=HELLO, max_tokens=400, stream=True)
    next(iter(stream))
    revoke()
    with pytest.raises(anthropic.APIError, match="revoked"):
        list(stream)


def test_what_it_drew_is_not_drawn_on(app, url, key, revoke):
    engine = app.state.parts.engine
    before, asked = engine.closed, len(engine.asked)
    body = {"model": "tiny", "messages": HELLO, "stream": True}
    headers = {"authorization": f"Bearer {key[1]}"}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        revoke()
        for _ in pieces:
            pass
    assert len(engine.asked) == asked + 1
    assert engine.closed == before + 1


def test_an_expired_key_ends_its_stream(app, url):
    secret = app.state.parts.keys.mint("k", LOCAL_TEAM, scopes=("run",), expires_in=0.5)[1]
    client = openai.OpenAI(base_url=url, api_key=secret, max_retries=0)
    stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="expired"):
        list(stream)


@pytest.mark.parametrize("by", ["cookie", "key"])
def test_a_page_s_silent_stream_of_events_ends(app, url, key, revoke, by):
    cookies = {COOKIE: app.state.parts.web_sessions.begin(key[0])} if by == "cookie" else {}
    headers = {"authorization": f"Bearer {key[1]}"} if by == "key" else {}
    with httpx.stream("GET", f"{url}/events/jobs", headers=headers, cookies=cookies) as answer:
        assert answer.status_code == 200
        pieces = answer.iter_bytes()
        next(pieces)  # How things are; from here on nothing changes.
        revoke()
        assert list(pieces) == []
    again = httpx.get(f"{url}/events/jobs", headers=headers, cookies=cookies)
    assert again.status_code in (303, 401)


def test_signing_out_ends_the_streams_of_the_session(app, url, key):
    sessions = app.state.parts.web_sessions
    secret = sessions.begin(key[0])
    with httpx.stream("GET", f"{url}/events/jobs", cookies={COOKIE: secret}) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        sessions.end(secret)
        assert list(pieces) == []


def test_a_websocket_is_closed(app, url, key, revoke):
    platform = app.state.parts
    build = Builds(platform.store, platform.config.home).begin(LOCAL_TEAM)
    place = f"{url.replace('http', 'ws')}/v2/builds/{build}/logs"
    with connect(place, additional_headers={"authorization": f"Bearer {key[1]}"}) as socket:
        socket.recv()
        revoke()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                socket.recv()
    assert closed.value.rcvd.code == 4003


def test_an_answer_that_takes_long_is_not_given_to_a_revoked_key(app, url, key, revoke):
    """The whole answer is ready after its key ended."""
    engine = app.state.parts.engine
    begun = threading.Event()
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 30}

    async def ask():
        async with httpx.AsyncClient(base_url=url) as client:
            headers = {"authorization": f"Bearer {key[1]}"}
            return await client.post("/v1/chat/completions", json=body, headers=headers)

    async def attack():
        asking = asyncio.create_task(ask())
        await asyncio.to_thread(begun.wait, 5)
        await asyncio.to_thread(revoke)
        return await asking

    plain, engine.stream = engine.stream, slow(engine, begun)
    try:
        answer = asyncio.run(attack())
    finally:
        engine.stream = plain
    assert answer.status_code == 401
    assert "words" not in answer.text


def slow(engine, begun):
    """A stream of a few words that takes half a second."""
    from hud_platform.serving.token_engine import TokenEnd

    async def stream(model, checkpoint, request):
        begun.set()
        for _ in range(5):
            await asyncio.sleep(0.1)
            yield TokenDelta(engine.turns[0][:1], [-0.5], None, 1, "c" * 32)
        yield TokenEnd("length", 1, "c" * 32)

    return stream
