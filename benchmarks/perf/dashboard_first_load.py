"""What a person waits for: the first load of the dashboard, and a run of 2,000 steps with 200 screenshots.

    python benchmarks/perf/dashboard_first_load.py [--rounds 5]

A real Chromium with an empty cache looks at `hud view`. Of the first load are told the bytes that came over the wire, and
when the page answered: it was loaded, and no script held it up any more. A long run is open when its first step answers a
key, its timeline is drawn and its screenshots are there to be scrubbed. Then it is scrolled through, a frame at a time;
frames that took longer than 50 ms are counted. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import base64
import statistics
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import dashboard_store
import orjson
from dashboard_browser import chromium, viewed
from records import report
from sizes import size

from hud.trace import new_id
from hud.trace.recording.journal import encode_event
from hud_platform.store import Store
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

BAR_BYTES, BAR_SECONDS, BAR_FRAMES = 300_000, 1.0, 0.05
JOBS = size(30, 2)
STEPS, SCREENSHOTS = size((2_000, 200), (60, 2))
SLOW_FRAME = 50
"""Milliseconds."""
INTERACTIVE = """() => new Promise((done) => {
  let last = performance.getEntriesByType("navigation")[0].loadEventEnd;
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) last = Math.max(last, task.startTime + task.duration);
  }).observe({type: "longtask", buffered: true});
  setTimeout(() => done(last), 300);
})"""
SCROLL = """(seconds) => new Promise((done) => {
  const frames = [];
  let before = performance.now();
  const end = before + seconds * 1000;
  const scroll = (now) => {
    frames.push(now - before);
    before = now;
    scrollBy(0, 120);
    if (now < end && scrollY + innerHeight < document.documentElement.scrollHeight - 1) requestAnimationFrame(scroll);
    else done([frames.slice(1), Number([...document.querySelectorAll(".step[data-number]")].filter(
      (step) => step.getBoundingClientRect().top < innerHeight).at(-1)?.dataset.number ?? 0)]);
  };
  requestAnimationFrame(scroll);
})"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=size(5, 1))
    parser.add_argument("--scroll", type=float, default=size(15.0, 1.0), help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = Path(folder)
        store = Store.open(home)
        dashboard_store.fill(store, JOBS)
        loads = [first_load(browser, home) for _ in range(options.rounds)]
        with viewed(home) as (address, _):
            run = record(store, screenshots(browser, address))
        store.close()
        opened, frames, reached = [], [], 0
        with viewed(home) as (address, _):
            base, state = address.partition("/?")[0], signed_in(browser, address)
            for _ in range(options.rounds):
                page = browser.new_context(storage_state=state).new_page()
                page.goto(f"{base}/jobs")  # Where one comes from.
                opened.append(open_trace(page, f"{base}/trace/{run}"))
                shown, reached = page.evaluate(SCROLL, options.scroll / options.rounds)
                frames += shown
                page.context.close()
    sent = statistics.median(load[0] for load in loads)
    interactive = statistics.median(load[1] for load in loads)
    slow = sum(frame > SLOW_FRAME for frame in frames) / len(frames)
    print(
        f"  {len(frames)} frames while scrolling to step {reached}, median {statistics.median(frames):.0f} ms, "
        f"longest {max(frames):.0f} ms; opened after {max(opened):.2f} s at most"
    )
    run = f"a run of {STEPS:,} steps with {SCREENSHOTS} screenshots"
    held = [
        report("bytes of the first load", sent, "bytes", bar=BAR_BYTES, at_most=True),
        report("first load until it answers", interactive, "s", bar=BAR_SECONDS, at_most=True),
        report(f"{run}, open", statistics.median(opened), "s", bar=BAR_SECONDS, at_most=True),
        report(f"{run}, frames over {SLOW_FRAME} ms", slow, "of all", bar=BAR_FRAMES, at_most=True),
    ]
    return 0 if all(held) else 1


def first_load(browser: Any, home: Path) -> tuple[int, float]:
    """Return bytes that came over the wire, and seconds until the page answered, in a fresh browser and server."""
    with viewed(home) as (address, _):
        context = browser.new_context()
        page = context.new_page()
        wire, received = context.new_cdp_session(page), []
        wire.send("Network.enable")
        wire.on(
            "Network.loadingFinished", lambda event: received.append(event["encodedDataLength"])
        )
        begun = time.perf_counter()
        page.goto(address)
        # From the address with the token, over its redirects, which the browser's own clock leaves out.
        redirected = time.perf_counter() - begun - page.evaluate("() => performance.now()") / 1e3
        interactive = page.evaluate(INTERACTIVE) / 1e3
        assert page.locator("tbody tr").count() > 0
        context.close()
    return round(sum(received)), max(0.0, redirected) + interactive


def signed_in(browser: Any, address: str) -> Any:
    """Return what a browser keeps that opened the address with its token, which works once."""
    context = browser.new_context()
    context.new_page().goto(address)
    state = context.storage_state()
    context.close()
    return state


def open_trace(page: Any, address: str) -> float:
    """Return seconds until the run is open: a key leads to a step, the timeline is drawn, screenshots are there."""
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator("#step-1").wait_for()
    page.locator("#timeline[data-read]").wait_for()
    page.get_by_label("Screenshot", exact=True).wait_for()
    page.keyboard.press("j")
    page.locator(".step.current").wait_for()
    return time.perf_counter() - begun


def screenshots(browser: Any, address: str) -> list[bytes]:
    """Return pictures of real pages, as an agent with a browser would have taken."""
    page = browser.new_context(viewport={"width": 1024, "height": 768}).new_page()
    page.goto(address)
    base, taken = address.partition("/?")[0], []
    for place in (
        "/jobs",
        "/jobs?sort=-reward",
        "/models/tiny-grpo",
        "/train",
        "/people",
        "/tasksets",
    ):
        page.goto(base + place)
        taken.append(page.screenshot())
    page.context.close()
    # Each is another one, as far as the store can tell.
    return [_with_comment(taken[number % len(taken)], number) for number in range(SCREENSHOTS)]


def _with_comment(png: bytes, number: int) -> bytes:
    """Return a PNG with a number in it, before its end."""
    content = b"tEXtComment\0%d" % number
    chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
    return png[:-12] + chunk + png[-12:]


def record(store: Store, pictures: list[bytes]) -> str:
    """Record a run in which an agent clicks through pages; return its trace id."""
    trace, began = new_id(), time.time() - 3_600
    known = {"job_id": None, "group_id": None, "attempt": 0, "slug": "browse/long", "model": "tiny"}
    known["started_at"] = round(began * 1e6)
    lines = [encode_event(b"R", trace, 0, orjson.dumps(known))]
    for number in range(1, STEPS + 1):
        call = {"id": f"c{number // 2}", "name": "click", "arguments": {"x": number % 800, "y": 17}}
        step: dict[str, Any] = {"step_id": number, **_times(began + number)}
        if number % 2:
            said = (
                f"Turn {number}: the list is sorted; I open the next row and compare its sums. " * 3
            )
            step |= {"source": "agent", "content": said, "tool_calls": [call]}
            step["usage"] = {"prompt_tokens": 500 + 20 * number, "completion_tokens": 60}
        else:
            blocks: list[Any] = [
                {"type": "text", "text": f"Clicked {number}. " + "Row, sum. " * 30}
            ]
            if number % (STEPS // SCREENSHOTS) == 0:
                data = base64.b64encode(pictures[number * SCREENSHOTS // STEPS - 1]).decode()
                blocks.append({"type": "image", "data": data, "mimeType": "image/png"})
            step |= {"source": "tool", "call": call}
            step["result"] = {"content": blocks, "isError": number % 194 == 0}
        lines.append(encode_event(b"S", trace, number, orjson.dumps(step)))
    ended = {"status": "completed", "reward": 1.0, "step_count": STEPS, "turns": STEPS // 2}
    ended |= {**known, "ended_at": round((began + STEPS) * 1e6)}
    lines.append(encode_event(b"E", trace, 0, orjson.dumps(ended)))
    ingest(store, b"".join(lines), LOCAL_TEAM)
    return trace


def _times(moment: float) -> dict[str, str]:
    def told(at: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at))

    return {"started_at": told(moment), "ended_at": told(moment + 1)}


if __name__ == "__main__":
    sys.exit(main())
