"""What HTTP adds to one short completion: its median through the gateway, less the engine driven directly.

One request at a time, the same prompt and seed both ways, in turn, so that what else the machine does falls on both.
The server, with keys and the engine in its own process, and the client, a raw kept-alive socket, are one process each;
the engine is driven directly inside the server, where its thread and its loop are the same.

    python benchmarks/perf/gateway_overhead.py [--rounds 300] [--tokens 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import report
from sizes import size

BAR_MS = 3.0
TEXTS = [f"look at item {n}: the answer is {n} apples" for n in range(200)]
MESSAGES = [{"role": "user", "content": "look at item 7: what is the answer?"}]


async def serve(home: str) -> None:
    """Serve the platform beside a line protocol on standard input: each line drives the engine once."""
    import uvicorn

    from hud.trace import SamplingParams
    from hud_platform.application import create_app
    from hud_platform.gateway.chat_formats import format_of
    from hud_platform.process.config import PlatformConfig
    from hud_platform.process.http_connections import Bounds, settings_of
    from hud_platform.server import first_key, listen
    from hud_platform.serving.token_engine import TokenDelta, TokenRequest

    app = create_app(PlatformConfig(Path(home), keys=True))
    platform = app.state.parts
    key = first_key(platform)
    team = platform.keys.find(key).identity.team_id
    record = platform.registry.of(team).create("tiny", TEXTS)
    chat = format_of(record.folder).chat
    prompt = chat.render(MESSAGES, [])
    listening = listen("127.0.0.1", 0)
    bounded = settings_of(Bounds())
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on", **bounded)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print(json.dumps([listening.getsockname()[1], key]), flush=True)
    while line := await lines.readline():
        seed, tokens = json.loads(line)
        request = TokenRequest(prompt, SamplingParams(max_tokens=tokens, seed=seed), chat.stop_ids)
        started = time.perf_counter()
        drawn: list[int] = []
        async for item in platform.engine.stream(record, None, request):
            if isinstance(item, TokenDelta):
                drawn += item.token_ids
        print(json.dumps([time.perf_counter() - started, drawn]), flush=True)
    server.should_exit = True
    await serving


async def drive(
    server: asyncio.subprocess.Process, seed: int, tokens: int
) -> tuple[float, list[int]]:
    """Have the engine draw directly; returns its seconds and the ids."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([seed, tokens]).encode() + b"\n")
    seconds, drawn = json.loads(await server.stdout.readline())
    return seconds, drawn


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, seed: int, tokens: int
) -> tuple[float, list[int]]:
    """Ask through the gateway; returns the seconds until the whole answer is read, and the ids."""
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": tokens, "seed": seed}
    asked = json.dumps({**body, "return_token_ids": True}).encode()
    started = time.perf_counter()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
        % (key.encode(), len(asked), asked)
    )
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    answer = await reader.readexactly(length)
    took = time.perf_counter() - started
    return took, json.loads(answer)["choices"][0]["token_ids"]


async def main(rounds: int, tokens: int) -> int:
    """Print both medians and their difference; fail above the bar."""
    with tempfile.TemporaryDirectory() as home:
        server = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "serve",
            home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port, key = json.loads(await server.stdout.readline())
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            direct, through = [], []
            for seed in range(rounds + 20):
                # In turn, and each first every other time.
                if seed % 2:
                    seconds, drawn = await drive(server, seed, tokens)
                    took, told = await ask(reader, writer, key, seed, tokens)
                else:
                    took, told = await ask(reader, writer, key, seed, tokens)
                    seconds, drawn = await drive(server, seed, tokens)
                assert told == drawn
                if seed >= 20:  # The first ones load the model and fill caches.
                    direct.append(seconds * 1e3)
                    through.append(took * 1e3)
            writer.close()
        finally:
            server.stdin.close()
            await server.wait()
    whole, engine = statistics.median(through), statistics.median(direct)
    what = f"a completion of {tokens} tokens, median of {rounds}"
    report(f"{what}, through the gateway", whole, "ms", peer="engine directly", peer_value=engine)
    return int(not report("added by the gateway", whole - engine, "ms", bar=BAR_MS, at_most=True))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", home]:
            import uvloop  # As `hud up` does.

            uvloop.run(serve(home))
        case _:
            parser = argparse.ArgumentParser()
            parser.add_argument("--rounds", type=int, default=size(300, 1))
            parser.add_argument("--tokens", type=int, default=4)
            sys.exit(asyncio.run(main(**vars(parser.parse_args()))))
