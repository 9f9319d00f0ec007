"""A platform with a model whose turns come from a script, as a process that tests can kill: `python -m ... HOME PORT DATABASE`."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time

import httpx
import uvicorn

from hud.errors import OverloadedError, UsageError
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.gateway.chat_formats import format_of
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import EngineDownError, TokenDelta, TokenEnd

from .gateway_server import SIZES, TEXTS

FAULTS = {
    "broken": RuntimeError("broken"),
    "down": EngineDownError("The engine restarts."),
    "busy": OverloadedError("Too much at once."),
    "refused": UsageError("The engine takes no such prompt."),
}


class FaultyEngine:
    """Samples `some words`; fails as a word of the prompt says, before the first token or (`late`) after it."""

    up, streams = True, 0

    def __init__(self, chat):
        self.chat = chat
        self.ids = chat.tokenizer.encode("some words<|end|>", add_special_tokens=False).ids

    async def stream(self, model, checkpoint, request):
        words = re.findall("[a-z]+", self.chat.decode(request.prompt))
        fault = next((FAULTS[word] for word in words if word in FAULTS), None)
        if fault is not None and "late" not in words:
            raise fault
        yield TokenDelta(self.ids[:1], [-0.5], None, 1, "c" * 32)
        if fault is not None:
            raise fault
        if "hang" in words:
            await asyncio.sleep(600)
        yield TokenDelta(self.ids[1:], [-0.5] * (len(self.ids) - 1), None, 1, "c" * 32)
        yield TokenEnd("stop", 1, "c" * 32)


def faulty_platform(home, database=None):
    """Return the application of a server with keys, its model `tiny`, and a key."""
    app = create_app(PlatformConfig(home, database=database, keys=True))
    parts = app.state.parts
    team = Teams(parts.store).default()
    registry = parts.registry.of(team.id)
    models = registry.models()
    record = models[0] if models else registry.create("tiny", TEXTS, sizes=SIZES)
    parts.__dict__["engine"] = FaultyEngine(format_of(record.folder).chat)
    return app, parts.keys.mint("runs", team.id, scopes=("run",))[1]


@contextlib.contextmanager
def server_process(home, port, database=None):
    """Yield a server's process and its key when it is up; it is killed at the end."""
    command = [sys.executable, "-m", __name__, str(home), str(port), database or ""]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        key = process.stdout.readline().strip()
        for _ in range(200):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/healthz")
                break
            time.sleep(0.05)
        yield process, key
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    from pathlib import Path

    served, secret = faulty_platform(Path(sys.argv[1]), sys.argv[3] or None)
    print(secret, flush=True)
    uvicorn.run(served, port=int(sys.argv[2]), log_level="critical", lifespan="off")
