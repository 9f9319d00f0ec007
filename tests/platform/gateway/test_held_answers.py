"""Answers of providers are held in memory until their turns are over: those of a team have a limit together."""

import asyncio
import json
import threading

import httpx
import pytest
from tests.platform.gateway.gateway_server import serving

from hud.platform.application import PlatformConfig, create_app
from hud.platform.gateway import held_answers

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
