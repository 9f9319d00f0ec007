"""A provider of chat completions that answers well, not at all, in drops, or breaks off."""

import asyncio
import json
from typing import Any, Literal

from tests.request_bodies import body_of

Mood = Literal["well", "hangs", "drips", "breaks off", "is broken"]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


class Provider:
    """An ASGI application; `mood` is how it answers from now on."""

    def __init__(self) -> None:
        self.mood: Mood = "well"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await body_of(receive)
        mood = self.mood
        if mood == "hangs":
            await _gone(receive)  # What it is given up for is all that ends it.
            return
        status = 500 if mood == "is broken" else 200
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if mood == "is broken":
            await send({"type": "http.response.body", "body": b'{"error": {"message": "broken"}}'})
            return
        for number, word in enumerate(WORDS):
            if mood == "breaks off" and number == 4:
                raise ConnectionError("broken off")
            chunk = {"choices": [{"index": 0, "delta": {"content": word + " "}}]}
            event = f"data: {json.dumps(chunk)}\n\n".encode()
            pieces = (
                [event[n : n + 7] for n in range(0, len(event), 7)] if mood == "drips" else [event]
            )
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                if mood == "drips":
                    await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
