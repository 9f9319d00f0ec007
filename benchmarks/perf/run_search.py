"""Search over many runs: latency of queries, and whether the index keeps up with recording.

Fills a SQLite store (default: 1,000,000 runs of four steps, about 150 words) through `ingest`, as recorders do, and indexes it. Then
records 2,200 runs a second for a while, as a server's indexing works in a thread beside it, and measures how many runs are left to
index at the end. Then asks each query some times; the first answer counts as well. `--runs N` sets another number, `--home FOLDER`
keeps the store and measures the same one again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import sqlalchemy as sa
from records import report
from sizes import size

from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.search.run_index import RunIndexing, index_some
from hud_platform.search.run_search import search
from hud_platform.store import Store, tables
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

RUNS, SECONDS, ROUNDS = size((1_000_000, 30, 5), (600, 1, 2))
RATE = size(2_200, 200)
BAR = size(2_000, 180)
"""Least runs a second that are recorded while they are indexed."""
GROUP = 100
"""Runs of a job, which are one batch of lines."""
AT = 1_760_000_000_000_000
TOOLS = ("sql", "shell", "read_file", "click", "search_orders", "send_mail")
ERRORS = ("KeyError: 'total'", "TimeoutError: no answer within 30 s", "ValueError: not a date")
QUERIES = (
    "tool:sql error:KeyError",
    "tool:sql error:KeyError reward:<0.5 env:shop",
    "error:TimeoutError -tool:click",
    'result:"not a date"',
    "tool:send_mail error:KeyError model:never-played",
)


class Recording:
    """Runs as journal lines, made up from words that are as frequent as those of a language."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        self._words = [f"word{int(self._draw.paretovariate(0.6)) % 50_000}" for _ in range(200_000)]
        self._count = 0

    def job(self) -> bytes:
        """Return the lines of a job of `GROUP` runs."""
        job = new_id()
        lines = [
            _line(b"J", job, {"name": "shop · tiny", "taskset_id": None, "group_size": 1,
                              "pid": None, "process_started": None, "host": None, "at": AT})
        ]  # fmt: skip
        for _ in range(GROUP):
            lines += self._run(job)
        lines.append(_line(b"Z", job, {"status": "completed", "at": AT + self._count}))
        return b"".join(lines)

    def _text(self, words: int) -> str:
        start = self._draw.randrange(len(self._words) - words)
        return " ".join(self._words[start : start + words])

    def _run(self, job: str) -> Iterator[bytes]:
        draw, trace = self._draw, new_id()
        self._count += 1
        tool, failed = draw.choice(TOOLS), draw.random() < 0.1
        known = {"job_id": job, "group_id": job, "attempt": 0, "slug": f"buy-{self._count % 50}",
                 "model": "tiny", "task": {"env": draw.choice(("shop", "mail")), "id": "buy", "args": {}},
                 "started_at": AT + self._count}  # fmt: skip
        call = {"id": "c1", "name": tool, "arguments": {"text": self._text(10)}}
        text = draw.choice(ERRORS) if failed else self._text(60)
        steps = (
            {"source": "user", "messages": [{"role": "user", "content": self._text(40)}]},
            {"source": "agent", "content": self._text(10), "tool_calls": [call]},
            {"source": "tool", "call": {"id": "c1", "name": tool},
             "result": {"content": [{"type": "text", "text": text}], "isError": failed}},
            {"source": "agent", "content": self._text(30)},
        )  # fmt: skip
        for number, step in enumerate(steps, 1):
            yield _line(b"S", trace, {"step_id": number, **step}, number)
        end = {"status": "completed", "reward": draw.random(), "turns": 2, "step_count": 4}
        yield _line(b"E", trace, {**known, **end, "ended_at": AT + self._count + 10**7})


def _line(kind: bytes, identifier: str, payload: dict[str, object], step: int = 0) -> bytes:
    return encode_event(kind, identifier, step, orjson.dumps(payload))


def waiting(store: Store) -> int:
    """Return the number of runs that are not indexed yet."""
    return count(store, tables.runs_to_index)


def count(store: Store, table: sa.Table) -> int:
    """Return the number of a table's rows."""
    return int(store.value(sa.select(sa.func.count()).select_from(table)))


def fill(store: Store, recording: Recording, runs: int) -> float:
    """Record and index runs by turns; return the runs a second."""
    began = time.perf_counter()
    for number in range(0, runs, GROUP):
        ingest(store, recording.job(), LOCAL_TEAM)
        while index_some(store):
            pass
        if number and number % 100_000 == 0:
            print(f"{number:,} runs, {number / (time.perf_counter() - began):,.0f}/s", flush=True)
    return runs / (time.perf_counter() - began)


def keep_up(store: Store, recording: Recording) -> tuple[float, int, float]:
    """Record `RATE` runs a second for `SECONDS`; return the rate, the runs not indexed at the end, and the seconds until all are."""
    stopping = asyncio.Event()
    loop = asyncio.new_event_loop()
    indexing = threading.Thread(
        target=loop.run_until_complete, args=(RunIndexing(store, stopping).work(),)
    )
    jobs = [recording.job() for _ in range(RATE * SECONDS // GROUP)]
    indexing.start()
    began = time.perf_counter()
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + number * GROUP / RATE - time.perf_counter()))
        ingest(store, job, LOCAL_TEAM)
    ended = time.perf_counter()
    left = waiting(store)
    while waiting(store):
        time.sleep(0.01)
    indexed = time.perf_counter()
    loop.call_soon_threadsafe(stopping.set)
    indexing.join()
    loop.close()
    return len(jobs) * GROUP / (ended - began), left, indexed - ended


def ask(store: Store, text: str) -> tuple[float, float, int]:
    """Return the first and the median milliseconds of a query, and its number of runs."""
    times, total = [], 0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        total = search(store, LOCAL_TEAM, text, 25, 0).total
        times.append(1000 * (time.perf_counter() - began))
    return times[0], statistics.median(times), total


def main() -> int:
    """Fill, keep up, ask; report each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, recording = Store.open(options.home or Path(folder)), Recording()
        stored = count(store, tables.runs)
        if stored < options.runs:
            rate = fill(store, recording, options.runs - stored)
            report(f"recorded and indexed by turns, {options.runs:,} runs", rate, "/s")
        rate, left, seconds = keep_up(store, recording)
        name = f"{options.runs:,} runs"
        held = [
            report(f"recorded while indexing, {name}", rate, "/s", bar=BAR),
            report(
                f"indexed after the last run was recorded, {name}",
                seconds,
                "s",
                bar=1.0,
                at_most=True,
            ),
        ]
        print(f"{left:,} runs were waiting at the end")
        for text in QUERIES:
            first, median, total = ask(store, text)
            print(f"{text}: first {first:.0f} ms, {total:,} runs")
            held.append(report(f"{text}, {name}", median, "ms", bar=300, at_most=True))
        store.close()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
