"""Server time of every page of the dashboard, over a store of `dashboard_store.py`.

    python benchmarks/perf/dashboard_store.py HOME
    python benchmarks/perf/dashboard_pages.py HOME

The application is asked in this process, without a network: what is timed is its own work. The first request of each
page, which loads its template, is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import httpx

from hud.platform.application import PlatformConfig, create_app

BAR_SECONDS = 0.150
HEADERS = {"accept": "text/html", "accept-encoding": "gzip"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--requests", type=int, default=40)
    options = parser.parse_args()
    asyncio.run(measure(options.home, options.requests))


async def measure(home: Path, count: int) -> None:
    """Time every page and print its percentiles."""
    app = create_app(PlatformConfig(home))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as client:
        for path in await pages(client):
            seconds = []
            for _ in range(count + 1):
                begun = time.perf_counter()
                answer = await client.get(path, headers=HEADERS)
                seconds.append(time.perf_counter() - begun)
            answer.raise_for_status()
            first, *rest = seconds
            p95 = statistics.quantiles(rest, n=20)[-1]
            print(
                f"{path[:72]:72} first {first * 1e3:5.0f} ms, p50 {statistics.median(rest) * 1e3:4.0f} ms, "
                f"p95 {p95 * 1e3:4.0f} ms, {len(answer.content) / 1e3:4.0f} kB"
                + ("  ABOVE THE BAR" if p95 > BAR_SECONDS else "")
            )
    app.state.platform.close()


async def pages(client: httpx.AsyncClient) -> list[str]:
    """Return the addresses of all pages, with filters that make them work."""
    jobs = (await client.get("/jobs.json")).json()["items"]
    live, over = jobs[0], jobs[1]
    job = (await client.get(f"/jobs/{over['id']}.json")).json()
    run = job["tasks"][0]["runs"][0]["trace_id"]
    model, checkpoint = "tiny-grpo", (await client.get("/jobs.json?model=tiny-grpo")).json()
    drawn = checkpoint["choices"]["checkpoints"][0]["id"]
    alike = job["others"][0]["id"]
    return [
        "/jobs",
        "/jobs?offset=900",
        f"/jobs?model={model}",
        f"/jobs?model={model}&checkpoint={drawn}",
        f"/jobs?taskset={over['taskset_id']}&status=completed",
        "/jobs?status=running",
        "/jobs?text=forms&since=2020-01-01",
        "/jobs?sort=-reward",
        "/jobs?sort=-cost",
        f"/jobs/{live['id']}",
        f"/jobs/{over['id']}",
        f"/jobs/{over['id']}?sort=-spread&show=no-signal",
        f"/jobs/compare?job={over['id']}&job={alike}",
        f"/trace/{run}",
        "/models",
        "/train",
        "/tasksets",
        f"/tasksets/{over['taskset_id']}",
        "/environments",
        "/people",
    ]


if __name__ == "__main__":
    main()
