"""A provider of chat completions that keeps its streams open until it is let go, and raw clients of the gateway."""

import asyncio
import json
import threading
import time
from urllib.parse import urlsplit

from tests.request_bodies import body_of

WORDS = ["one", "two", "three", "four"]


class SlowUpstream:
    """An ASGI application. Every stream begins, waits until `release`, then sends its words and ends."""

    def __init__(self):
        self.open, self.most, self.released = 0, 0, threading.Event()
        self.left: list[float] = []
        """Times, on the monotonic clock, at which the gateway closed a request that was not over."""

    async def __call__(self, scope, receive, send):
        body = await body_of(receive)
        kind = b"text/event-stream" if json.loads(body).get("stream") else b"application/json"
        gone = asyncio.ensure_future(_gone(receive))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if kind == b"text/event-stream":
                headers = [(b"content-type", kind)]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await _say(send, WORDS[0])
            while not self.released.is_set() and not gone.done():
                await asyncio.wait([gone], timeout=0.02)
            if gone.done():
                self.left.append(time.monotonic())
                return
            for word in WORDS[1:]:
                await _say(send, word)
                await asyncio.sleep(0.05)
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        finally:
            self.open -= 1
            gone.cancel()


async def _say(send, word):
    event = {"choices": [{"index": 0, "delta": {"content": word + " "}}]}
    data = b"data: %s\n\n" % json.dumps(event).encode()
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _gone(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


class Client:
    """One request over a connection of its own."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def ask(cls, url, key, model, path="/v1/chat/completions", **fields):
        where = urlsplit(url)
        message = {"role": "user", "content": "Say words."}
        body = json.dumps({"model": model, "messages": [message], **fields}).encode()
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(
            b"POST %s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (path.encode(), key.encode(), len(body), body)
        )
        await writer.drain()
        return cls(reader, writer)

    async def begin(self):
        """Read the head of the answer."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def rest(self):
        """Read to the end, and close the connection."""
        data = await self.reader.read()
        self.close()
        return data

    def close(self):
        self.writer.close()
