"""Telemetry over HTTP into SQLite, against the same rows written by hand.

A server process takes uploads of 100 spans from 8 connections at a time, each span an agent step with its tokens;
every answer means that its spans are durable. By hand: the same JSON, one `executemany` for each upload, committed.
Prints spans a second of both, in turn, and the ratio.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import orjson
from records import report
from sizes import size

UPLOADS, SPANS, CONNECTIONS, ROUNDS = size((150, 100, 8, 3), (2, 2, 1, 1))
BAR = 2_000.0


def upload(number: int) -> tuple[str, bytes]:
    trace = f"{number:032x}"
    spans = [
        {
            "name": "step.agent",
            "trace_id": trace,
            "span_id": f"{number:08x}{step:08x}",
            "start_time": "2026-01-02T03:04:05.678Z",
            "end_time": "2026-01-02T03:04:06Z",
            "status_code": "OK",
            "attributes": {
                "hud.task_run_id": trace,
                "hud.schema": "hud.step.v1",
                "hud.payload": {
                    "step_id": step,
                    "source": "agent",
                    "content": "The pool of orders-api is exhausted. " * 4,
                    "tool_calls": [{"id": "1", "name": "query", "arguments": {"sql": "SELECT 1"}}],
                    "usage": {"prompt_tokens": 200, "completion_tokens": 40},
                    "sample": {
                        "prompt_token_ids": list(range(200)),
                        "output_token_ids": list(range(40)),
                        "output_logprobs": [-0.25] * 40,
                    },
                },
            },
        }
        for step in range(1, SPANS + 1)
    ]
    return trace, orjson.dumps({"telemetry": spans})


async def through_http(url: str, key: str, uploads: list[tuple[str, bytes]]) -> float:
    waiting = list(uploads)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def send() -> None:
            while waiting:
                trace, body = waiting.pop()
                place = f"{url}/v3/api/trace/{trace}/telemetry-upload"
                async with session.post(place, data=body) as answer:
                    assert (await answer.json())["new"] == SPANS

        started = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
        return len(uploads) * SPANS / (time.perf_counter() - started)


def by_hand(path: Path, uploads: list[tuple[str, bytes]]) -> float:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS steps (trace TEXT, step INTEGER, payload BLOB, PRIMARY KEY (trace, step))"
        )
        started = time.perf_counter()
        for trace, body in uploads:
            steps = [span["attributes"]["hud.payload"] for span in orjson.loads(body)["telemetry"]]
            rows = [(trace, step["step_id"], orjson.dumps(step)) for step in steps]
            database.executemany("INSERT OR IGNORE INTO steps VALUES (?, ?, ?)", rows)
            database.commit()
        return len(uploads) * SPANS / (time.perf_counter() - started)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HUD_HOME": f"{folder}/home"}
        command = [sys.executable, "-m", "hud.cli.main", "up", "--port", "0", "--workers", "0"]
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            said = ""
            assert server.stdout is not None
            while "HUD_API_KEY" not in said:
                said += server.stdout.readline()
            url = re.search(r"HUD_API_URL=(\S+)", said)
            key = re.search(r"HUD_API_KEY=(\S+)", said)
            assert url is not None
            assert key is not None
            rates: tuple[list[float], list[float]] = ([], [])
            for number in range(ROUNDS):
                first = number * UPLOADS
                uploads = [upload(first + place) for place in range(UPLOADS)]
                rates[0].append(asyncio.run(through_http(url[1], key[1], uploads)))
                rates[1].append(by_hand(Path(folder) / "hand.db", uploads))
        finally:
            server.terminate()
            server.wait()
    served, bare = map(statistics.median, rates)
    what = f"spans over HTTP, {SPANS} an upload, {CONNECTIONS} connections"
    report(what, served, "/s", bar=BAR, peer="rows written by hand", peer_value=bare)


if __name__ == "__main__":
    main()
