"""A live job page with 64 rollouts in flight: how late it shows what happened, and what that costs the server.

    python benchmarks/perf/dashboard_live.py [--seconds 30]

`hud view` serves a store that this process records into, as `hud eval` does: two rollouts end and two begin each second,
and each of the 64 takes a step every two seconds. A real Chromium has the job's page open. Later than 1 s after it was
recorded nothing may be seen; the page is never loaded anew; the server takes less than 10% of a core.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
from dashboard_browser import chromium, cpu_seconds, viewed
from records import report
from sizes import size

from hud.processes.presence import process_started
from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.store import Store
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

IN_FLIGHT, TASKS, GROUP = size((64, 48, 4), (4, 3, 2))
BAR_SECONDS, BAR_CORE = 1.0, 0.10
PERIOD = 0.5
"""Seconds between two rollouts that end."""
WATCH = """() => {
  window.sameDocument = true;
  window.seen = [];
  const look = () => {
    const facts = document.querySelector(".facts")?.innerText ?? "";
    const over = Number((facts.match(/Runs\\s+([\\d,]+)/i) ?? [])[1]?.replaceAll(",", ""));
    const last = window.seen.at(-1);
    if (!last || last[1] !== over) window.seen.push([Date.now() / 1000, over]);
  };
  look();
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


class LiveJob:
    """A job that is being played: records its runs and steps into a store."""

    def __init__(self, store: Store) -> None:
        self.store, self.draw = store, random.Random(0)
        self.id, self.over, self.begun = new_id(), 0, 0
        self.running: list[tuple[str, dict[str, Any], int]] = []
        self.groups = [new_id() for _ in range(TASKS)]
        opened = {
            "name": "triage · tiny",
            "taskset_id": None,
            "group_size": GROUP,
            "pid": os.getpid(),
            "process_started": process_started(os.getpid()),
            "host": socket.gethostname(),
            "at": _now(),
        }
        self._write([encode_event(b"J", self.id, 0, orjson.dumps(opened))])

    def begin(self, count: int) -> None:
        """Begin so many runs."""
        lines = []
        for _ in range(count):
            task, trace = self.begun % TASKS, new_id()
            known = {
                "job_id": self.id,
                "group_id": self.groups[task],
                "attempt": self.begun // TASKS,
                "slug": f"triage/{task:02d}",
                "model": "tiny",
                "started_at": _now(),
            }
            self.running.append((trace, known, 0))
            self.begun += 1
            lines.append(encode_event(b"R", trace, 0, orjson.dumps(known)))
        self._write(lines)

    def step(self) -> None:
        """Let a quarter of the runs in flight take a step."""
        lines = []
        for place in self.draw.sample(range(len(self.running)), len(self.running) // 4):
            trace, known, steps = self.running[place]
            self.running[place] = (trace, known, steps + 1)
            step = {"step_id": steps + 1, "source": "agent", "content": "I look. " * 20}
            lines.append(encode_event(b"S", trace, steps + 1, orjson.dumps(step)))
        self._write(lines)

    def end(self) -> None:
        """End the run that began first."""
        trace, known, steps = self.running.pop(0)
        ended = {
            **known,
            "status": "completed",
            "reward": self.draw.choice((0.0, 0.5, 1.0)),
            "stop_reason": "done",
            "step_count": steps,
            "turns": steps,
            "prompt_tokens": 900,
            "completion_tokens": 100,
            "ended_at": _now(),
        }
        self._write([encode_event(b"E", trace, 0, orjson.dumps(ended))])
        self.over += 1

    def _write(self, lines: list[bytes]) -> None:
        ingest(self.store, b"".join(lines), LOCAL_TEAM)


def _now() -> int:
    return round(time.time() * 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=size(30.0, 3.0))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        job = LiveJob(store)
        job.begin(IN_FLIGHT)
        for _ in range(IN_FLIGHT):
            job.step()
            job.end()
            job.begin(1)
        with viewed(Path(folder)) as (address, server), chromium() as browser:
            found = watched(browser, address, server, job, options.seconds)
        store.close()
    delays, share, same = found
    delays.sort()
    what = f"until an ended run is shown, {IN_FLIGHT} in flight"
    if not same:
        print("THE PAGE WAS LOADED ANEW")
    report(f"{what}, median", delays[len(delays) // 2], "s")
    held = report(f"{what}, longest", delays[-1], "s", bar=BAR_SECONDS, at_most=True)
    held &= report("the server's share of a core", share, "cores", bar=BAR_CORE, at_most=True)
    return 0 if held and same else 1


def watched(
    browser: Any, address: str, server: int, job: LiveJob, seconds: float
) -> tuple[list[float], float, bool]:
    """Return how late each end of a run was seen, the server's share of a core, and whether the page stayed."""
    page = browser.new_page()
    page.goto(address)
    page.goto(f"{address.partition('/?')[0]}/jobs/{job.id}")
    page.locator("[data-live]").wait_for()
    page.evaluate(WATCH)
    page.wait_for_timeout(2_000)  # The page's first requests are no part of what it costs to stay.
    told: list[tuple[float, int]] = []
    spent, begun = cpu_seconds(server), time.perf_counter()
    following = begun
    while time.perf_counter() < begun + seconds:
        job.step()
        job.end()
        told.append((time.time(), job.over))
        job.begin(1)
        following += PERIOD
        page.wait_for_timeout(max(0.0, following - time.perf_counter()) * 1e3)
    share = (cpu_seconds(server) - spent) / (time.perf_counter() - begun)
    page.wait_for_timeout(3_000)
    seen = page.evaluate("() => window.seen ?? []")
    same = bool(page.evaluate("() => window.sameDocument === true"))
    delays = [
        next((at for at, over in seen if over is not None and over >= count), float("inf")) - moment
        for moment, count in told
    ]
    return delays, share, same


if __name__ == "__main__":
    sys.exit(main())
