"""Answers of providers are held in memory until their turns are over: those of a team have a limit together."""

import asyncio
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
from tests.platform.gateway.gateway_server import serving

from hud_platform.application import create_app
from hud_platform.gateway import held_answers
from hud_platform.process.config import PlatformConfig

TURN = {"model": "slow", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
SIZE = 700_000
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class SlowProvider:
    """A provider that sends most of an answer, and its end when `ending` is set."""

    def __init__(self, whole):
        self.whole = whole
        self.ending = threading.Event()  # Set by another thread.
        self.waiting = threading.Semaphore(0)

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        text = "x" * SIZE
        if self.whole:
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps({"choices": [choice]}).encode()
            first, last = body[:-2], body[-2:]
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
        else:
            begun = {"choices": [{"index": 0, "delta": {"content": text}}]}
            first, last = (b"data: %s\n\n" % json.dumps(part).encode() for part in (begun, END))
            headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        self.waiting.release()
        await asyncio.to_thread(self.ending.wait)
        await send({"type": "http.response.body", "body": last})


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_answers_of_a_team_have_a_limit_together(tmp_path, monkeypatch, path, whole):
    """A provider that never ended its answers filled the memory, 64 MiB for each request."""
    monkeypatch.setattr(held_answers, "MOST_BYTES", 5 * SIZE // 2)
    provider, app = SlowProvider(whole), create_app(PlatformConfig(tmp_path))
    with serving(provider) as upstream, serving(app) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            config = {"url": upstream, "dialect": "openai", "upstream_model": "m"}
            provided = {"name": "slow", "provider": config}
            assert (await client.post("/v2/models/provide", json=provided)).status_code == 200
            forwarded = path == "/v1/chat/completions" and not whole
            turns = [asyncio.create_task(client.post(path, json=TURN)) for _ in range(2)]
            for _ in turns:
                await asyncio.to_thread(provider.waiting.acquire)
            third = asyncio.create_task(client.post(path, json=TURN))
            await asyncio.to_thread(provider.waiting.acquire)
            if not forwarded:
                refusal = await third
                assert refusal.status_code == 429
                assert "hold" in refusal.text
            provider.ending.set()
            for turn in (*turns, third) if forwarded else turns:
                assert (await turn).status_code == 200
            assert (await client.post(path, json=TURN)).status_code == 200
    app.state.parts.close()


class EndlessProvider:
    """A provider that sends as fast as it is read; `sent` counts its bytes."""

    def __init__(self):
        self.sent = 0

    async def __call__(self, scope, receive, send):
        event = {"choices": [{"index": 0, "delta": {"content": "x" * 200}}]}
        events = b"data: %s\n\n" % json.dumps(event).encode() * 200
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while self.sent < MOST_SENT:
            await send({"type": "http.response.body", "body": events, "more_body": True})
            self.sent += len(events)


MOST_SENT = 256 << 20


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_a_stream_that_nobody_reads_stops_its_provider(tmp_path, path):
    provider, app = EndlessProvider(), create_app(PlatformConfig(tmp_path))
    with serving(provider) as upstream, serving(app) as url, socket.socket() as client:
        config = {"url": upstream, "dialect": "openai", "upstream_model": "m"}
        httpx.post(url + "/v2/models/provide", json={"name": "slow", "provider": config})
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", urlsplit(url).port))
        body = json.dumps({**TURN, "stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: hud\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        seen = -1
        while provider.sent == 0 or provider.sent != seen:
            seen = provider.sent
            time.sleep(1.0)
        assert provider.sent < MOST_SENT
    app.state.parts.close()
