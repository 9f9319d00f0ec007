"""256 conversations streamed at once: tokens a second through the gateway, and of the engine driven directly.

The policy has the demo's size. Every conversation is another, so that no prompt is shared, and each is streamed to its end
over a connection of its own; the tokens that count are those whose ids come back in the last event of a stream. The
client is a process of its own and reads as a client must: every event, to the last.

    python benchmarks/perf/gateway_streams.py [--streams 256] [--tokens 64] [--engine inline|worker]
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
from urllib.parse import urlsplit

import psutil
from records import report
from sizes import size

BAR = 0.8
TEXTS = [f"look at item {n}: the answer is {n} apples" for n in range(200)]


def question(number: int) -> list[dict[str, str]]:
    """Return one conversation."""
    return [{"role": "user", "content": f"look at item {number}: what is the answer? " * 2}]


async def serve(home: str, engine: str) -> None:
    """Serve the platform; a line on standard input, `[streams, tokens]`, drives the engine directly instead."""
    import uvicorn

    from hud.trace import SamplingParams
    from hud_platform.application import create_app
    from hud_platform.gateway.chat_formats import format_of
    from hud_platform.process.config import PlatformConfig
    from hud_platform.server import first_key, listen
    from hud_platform.serving.token_engine import TokenDelta, TokenRequest

    app = create_app(PlatformConfig(Path(home), keys=True, engine=engine))
    platform = app.state.parts
    key = first_key(platform)
    team = platform.keys.find(key).identity.team_id
    record = platform.registry.of(team).create("demo", TEXTS)
    chat = format_of(record.folder).chat
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print(json.dumps([f"http://127.0.0.1:{listening.getsockname()[1]}", key]), flush=True)

    async def draw(number: int, tokens: int) -> int:
        params = SamplingParams(max_tokens=tokens, seed=number)
        request = TokenRequest(chat.render(question(number), []), params, chat.stop_ids)
        drawn = 0
        async for item in platform.engine.stream(record, None, request):
            drawn += len(item.token_ids) if isinstance(item, TokenDelta) else 0
        return drawn

    while line := await lines.readline():
        streams, tokens = json.loads(line)
        started = time.perf_counter()
        drawn = await asyncio.gather(*(draw(number, tokens) for number in range(streams)))
        print(json.dumps([sum(drawn), time.perf_counter() - started]), flush=True)
    server.should_exit = True
    await serving


async def read(url: str, key: str, streams: int, tokens: int) -> None:
    """Stream all conversations; prints tokens, seconds, events and errors."""
    where = urlsplit(url)
    counted = {"tokens": 0, "events": 0, "errors": 0}
    opened = await asyncio.gather(
        *(asyncio.open_connection(where.hostname, where.port) for _ in range(streams))
    )

    async def converse(number: int) -> None:
        reader, writer = opened[number]
        body = {
            "model": "demo",
            "messages": question(number),
            "max_tokens": tokens,
            "seed": number,
            "stream": True,
            "return_token_ids": True,
        }
        asked = json.dumps(body).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (key.encode(), len(asked), asked)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        last, done = b"", False
        async for line in reader:
            if line.startswith(b"data: "):
                counted["events"] += 1
                done = line.startswith(b"data: [DONE]")
                last = last if done else line
        writer.close()
        ids = json.loads(last[6:])["choices"][0].get("token_ids") if last else None
        counted["tokens"] += len(ids or ())
        counted["errors"] += not (head.startswith(b"HTTP/1.1 200") and done and ids)

    started = time.perf_counter()
    await asyncio.gather(*(converse(number) for number in range(streams)))
    print(json.dumps({**counted, "seconds": time.perf_counter() - started}), flush=True)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and its children have used so far."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return sum(one.cpu_times().user + one.cpu_times().system for one in family)


async def main(streams: int, tokens: int, engine: str, rounds: int) -> int:
    """Print tokens a second both ways, in turn; fail below the bar or with any error."""
    with tempfile.TemporaryDirectory() as home:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "serve", home, engine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert server.stdin is not None
        assert server.stdout is not None
        direct, through, errors, events = [], [], 0, 0
        spent = {"directly": 0.0, "through": 0.0}
        try:
            url, key = json.loads(await server.stdout.readline())
            for turn in range(rounds + 1):
                before = cpu_seconds(server.pid)
                server.stdin.write(json.dumps([streams, tokens]).encode() + b"\n")
                drawn, seconds = json.loads(await server.stdout.readline())
                between = cpu_seconds(server.pid)
                reader = await asyncio.create_subprocess_exec(
                    *(sys.executable, __file__, "read", url, key, str(streams), str(tokens)),
                    stdout=subprocess.PIPE,
                )
                told, _ = await reader.communicate()
                counted = json.loads(told)
                errors += counted["errors"]
                assert counted["tokens"] == drawn, "Both ways draw the same."
                if turn:  # The first round loads the model.
                    direct.append(drawn / seconds)
                    through.append(counted["tokens"] / counted["seconds"])
                    events += counted["events"]
                    spent["directly"] += between - before
                    spent["through"] += cpu_seconds(server.pid) - between
        finally:
            server.stdin.close()
            await server.wait()
    # Both ways of a round follow one another, so that what else the machine does falls on both as far as it can.
    ratios = sorted(one / other for one, other in zip(through, direct, strict=True))
    ratio = statistics.median(ratios)
    used = (spent["through"] - spent["directly"]) / (drawn * rounds)
    what = f"{streams} streams of up to {tokens} tokens, engine {engine}"
    print(
        f"  {errors} errors, {drawn * rounds / events:.1f} tokens an event, slowest round {ratios[0]:.0%}"
    )
    report(
        f"{what}, through the gateway",
        statistics.median(through),
        "tokens/s",
        peer="engine directly",
        peer_value=statistics.median(direct),
        ratio=ratio,
    )
    held = report(f"{what}, share of the engine directly", ratio, "times", bar=BAR)
    report(f"{what}, processor time added to a token", used * 1e6, "µs")
    return int(not held or errors > 0)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", home, engine]:
            import uvloop  # As `hud up` does.

            uvloop.run(serve(home, engine))
        case ["read", url, key, streams, tokens]:
            asyncio.run(read(url, key, int(streams), int(tokens)))
        case _:
            parser = argparse.ArgumentParser()
            parser.add_argument("--streams", type=int, default=size(256, 2))
            parser.add_argument("--tokens", type=int, default=size(64, 4))
            parser.add_argument("--rounds", type=int, default=size(5, 1))
            parser.add_argument("--engine", default="inline", choices=["inline", "worker"])
            sys.exit(asyncio.run(main(**vars(parser.parse_args()))))
