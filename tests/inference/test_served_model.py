"""Models behind HTTP: where their requests go."""

from __future__ import annotations

import asyncio
import json

import pytest

from hud.errors import RefusedError
from hud.inference.endpoints import Endpoint
from hud.inference.retries import Provider
from hud.inference.served_model import ServedModel
from hud.trace import SamplingParams
from hud_integrations.anthropic.codec import AnthropicCodec

HELLO = [{"role": "user", "content": "hello"}]
MESSAGE = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}


class Server:
    """Answers every request alike, and keeps their first lines."""

    def __init__(self, status="200 OK", headers=""):
        self.lines = []
        self.head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}"

    async def __call__(self, reader, writer):
        self.lines.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
        body = json.dumps(MESSAGE)
        writer.write(f"{self.head}content-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self.server.close()


async def ask(url):
    model = ServedModel("m", Endpoint(url, "key", Provider(url)), AnthropicCodec())
    try:
        return (await model.complete(HELLO, [], SamplingParams())).content
    finally:
        await model.aclose()


async def test_a_proxy_of_the_environment_is_gone_through(monkeypatch):
    async with Server() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert await ask("http://provider.test") == "hi"
    assert proxy.lines == ["POST http://provider.test/v1/messages HTTP/1.1"]


async def test_a_redirection_is_refused_and_takes_no_key_elsewhere():
    async with Server() as elsewhere:
        location = f"location: {elsewhere.url}/v1/messages\r\n"
        async with Server("307 Temporary Redirect", location) as server:
            with pytest.raises(RefusedError, match="answered 307"):
                await ask(server.url)
    assert elsewhere.lines == []
