"""Server time of every page of the dashboard, over the store that `dashboard_store.py` makes.

    python benchmarks/perf/dashboard_pages.py             # makes a store first, in about a minute
    python benchmarks/perf/dashboard_pages.py HOME        # one that `dashboard_store.py HOME` made

Pages are found as a person finds them: from the first ones, along every link, one of each kind, where a kind is an
address without its ids but with its order; besides, filters set together that only a form would set. Each page's JSON
twin is asked, too. The application is asked in this process, without a network: what is timed is its own work. The
first request of each page, which loads its template and sums up what is kept, is told apart. Prints each page's
percentiles, and the ratio of the slowest 95th percentile to the bar.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import dashboard_store
import httpx
from records import report
from sizes import size

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.server import freeze_memory
from hud_platform.store import Store

BAR_SECONDS = 0.150
HEADERS = {"accept": "text/html", "accept-encoding": "gzip"}
FIRST = ("/jobs", "/models", "/train", "/tasksets", "/environments", "/people", "/playground")
KEPT = ("sort", "show", "tokens", "status", "state", "action")
"""Parameters whose values make pages of different kinds."""
_ID = re.compile("[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, nargs="?")
    parser.add_argument("--requests", type=int, default=size(20, 2))
    parser.add_argument("--only", default="", help="measure addresses that hold this text")
    options = parser.parse_args()
    if options.home is not None:
        return asyncio.run(measure(options.home, options.requests, options.only))
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        dashboard_store.fill(store, size(1_000, 60))
        store.close()
        return asyncio.run(measure(Path(folder), options.requests, options.only))


async def measure(home: Path, count: int, only: str) -> int:
    """Time every page and print its percentiles; return 1 where one is above the bar."""
    app = create_app(PlatformConfig(home))
    transport = httpx.ASGITransport(app=app)
    slowest = 0.0
    async with httpx.AsyncClient(
        transport=transport, base_url="http://dashboard", headers=HEADERS, timeout=60
    ) as client:
        await client.get("/jobs")
        freeze_memory()  # As a server does when it is up.
        for path in await addresses(client):
            if only not in path:
                continue
            seconds = []
            for _ in range(count + 1):
                begun = time.perf_counter()
                answer = await client.get(path)
                seconds.append(time.perf_counter() - begun)
            first, *rest = seconds
            p95 = statistics.quantiles(rest, n=20)[-1]
            slowest = max(slowest, p95)
            print(
                f"{_shortened(path):88} first {first * 1e3:4.0f} ms, min {min(rest) * 1e3:4.0f}, "
                f"p50 {statistics.median(rest) * 1e3:4.0f}, p95 {p95 * 1e3:4.0f} ms, "
                f"{len(answer.content) / 1e3:4.0f} kB"
                + ("  ABOVE THE BAR" if p95 > BAR_SECONDS else ""),
                flush=True,
            )
    app.state.parts.close()
    held = report("slowest page, p95", slowest * 1e3, "ms", bar=BAR_SECONDS * 1e3, at_most=True)
    return 0 if held else 1


async def addresses(client: httpx.AsyncClient) -> list[str]:
    """Return an address of every kind, and of its JSON twin."""
    found: dict[str, str] = {}
    chosen = await _chosen(client)
    waiting = [*chosen, *FIRST]
    while waiting:
        path = waiting.pop(0)
        # Those that are chosen stand for their kind, and are all asked.
        kind = path if path in chosen and _kind(path) in found else _kind(path)
        if kind in found:
            continue
        answer = await client.get(path)
        if answer.status_code != 200:
            continue  # Moved on, or what a form must fill in first.
        found[kind] = path
        if answer.headers["content-type"].startswith("text/html"):
            waiting += _links(path, answer.text)
    twins = []
    for path in found.values():
        parts = urlsplit(path)
        twin = parts._replace(path=f"{parts.path}.json").geturl()
        if not parts.path.endswith(".json") and (await client.get(twin)).status_code == 200:
            twins.append(twin)
    return [*found.values(), *twins]


async def _chosen(client: httpx.AsyncClient) -> list[str]:
    """Return addresses of what has the most to show, and those that forms make."""
    live = (await client.get("/jobs.json")).json()["items"][0]
    jobs = (await client.get("/jobs.json?model=tiny-grpo&status=completed")).json()
    one, other = jobs["items"][0], jobs["items"][1]
    half = (await client.get("/jobs.json")).json()["total"] // 2
    third = (await client.get(f"/jobs.json?offset={half}")).json()["items"][0]["id"]
    drawn = jobs["choices"]["checkpoints"][0]["id"]
    taskset = one["taskset_id"]
    job = (await client.get(f"/jobs/{one['id']}.json")).json()
    runs = job["tasks"][0]["runs"]
    every = {
        "taskset": taskset,
        "model": "tiny-grpo",
        "checkpoint": drawn,
        "status": "completed",
        "since": "2020-01-01",
        "until": "2100-01-01",
        "text": "tiny",
    }
    orders = ("name", "reward", "spread", "runs", "failed", "tokens", "cost", "duration", "started")
    return [
        f"/jobs/{one['id']}",
        f"/jobs/{live['id']}",
        f"/tasksets/{taskset}",
        "/models/tiny-grpo",
        *(f"/jobs?{urlencode({name: value})}" for name, value in every.items()),
        *(f"/jobs?{urlencode({'status': status})}" for status in ("running", "interrupted")),
        *(f"/jobs?{urlencode({**every, 'sort': f'-{order}'})}" for order in orders),
        *(f"/jobs?{urlencode({'text': 'a', 'sort': order, 'offset': 975})}" for order in orders),
        f"/jobs/compare?job={one['id']}&job={other['id']}",
        f"/jobs/compare?job={one['id']}&job={other['id']}&job={third}&sort=slug",
        f"/jobs/compare?{urlencode([('job', item['id']) for item in jobs['items'][:6]])}",
        f"/tasksets/{taskset}?search=triage&sort=-spread",
        f"/tasksets/{taskset}?version=1&sort=mean&offset=1950",
        f"/trace/{runs[0]['trace_id']}/compare/{runs[1]['trace_id']}",
        f"/models/tiny-grpo/compare?second={drawn}",
        f"/models/tiny-grpo/compare?first={drawn}&second=step-0241&taskset={taskset}",
        f"/models/tiny-grpo?checkpoint={drawn}&all=1",
        "/people/audit?action=head+moved&offset=1000",
    ]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        self.found += [
            value for name, value in attrs if value and name in ("href", "hx-get", "data-chart")
        ]


def _links(base: str, page: str) -> list[str]:
    parser = _Links()
    parser.feed(page)
    whole = (urljoin(base, link).partition("#")[0] for link in parser.found)
    # Downloads are no pages.
    return [
        link
        for link in whole
        if link.startswith("/") and not link.startswith("/static/") and not link.endswith(".jsonl")
    ]


def _kind(path: str) -> str:
    parts = urlsplit(path)
    place = re.sub(r"/\d+\b", "/*", _ID.sub("*", parts.path))
    if place.startswith("/models/"):
        place = re.sub("^/models/[^/]+", "/models/*", place)
    query = sorted(parse_qsl(parts.query))
    # Orders and the like one by one; set together with others, once.
    if len(query) == 1 and query[0][0] in KEPT:
        return f"{place}?{query[0][0]}={query[0][1].removeprefix('-')}"
    return f"{place}?{'&'.join(name for name, _ in query)}"


def _shortened(path: str) -> str:
    return _ID.sub(lambda found: found[0][:4] + "…", path)[:88]


if __name__ == "__main__":
    sys.exit(main())
