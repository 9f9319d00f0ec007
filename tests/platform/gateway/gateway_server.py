"""A platform behind a real server on loopback, and engines that say what a test tells them to."""

import asyncio
import contextlib
import socket
import threading

import uvicorn

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import TokenDelta, TokenEnd
from hud_platform.store.tables import LOCAL_TEAM

TEXTS = [
    f'look at item {n}: {{"name": "look", "arguments": {{"at": {n}}}}} the answer is {n} apples'
    for n in range(50)
]
SIZES = {"vocab_size": 400, "hidden": 32, "layers": 2, "max_context": 512}


def make_platform(home, slug="tiny", **config):
    """Return an application whose one local team has a small model."""
    app = create_app(PlatformConfig(home, **config))
    app.state.parts.registry.of(LOCAL_TEAM).create(slug, TEXTS, sizes=SIZES)
    return app


@contextlib.contextmanager
def serving(app):
    """Serve an ASGI application on loopback; yields its base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)  # Whoever asks before the server is up waits for it.
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listener.close()


class ScriptedEngine:
    """A token engine that draws given texts, a few tokens at a time, whatever it is asked."""

    up, streams = True, 0

    def __init__(self, tokenizer, *texts, pieces=1, end="<|end|>", then=None):
        self.tokenizer = tokenizer
        self.turns = [tokenizer.encode(text + end, add_special_tokens=False).ids for text in texts]
        self.pieces = pieces
        self.then = then
        self.asked = []
        self.closed = 0

    async def stream(self, model, checkpoint, request):
        self.asked.append((model, checkpoint, request))
        ids = self.turns[(len(self.asked) - 1) % len(self.turns)][: request.params.max_tokens]
        try:
            for start in range(0, len(ids), self.pieces):
                part = ids[start : start + self.pieces]
                top = [[(token, -0.5), (1, -1.5)] for token in part]
                likeliest = top if request.top_logprobs else None
                yield TokenDelta(part, [-0.5] * len(part), likeliest, 1, "c" * 32)
                await asyncio.sleep(0)
            if self.then is not None:
                await self.then()
            yield TokenEnd("stop" if ids[-1] in request.stop_ids else "length", 1, "c" * 32)
        finally:
            self.closed += 1
