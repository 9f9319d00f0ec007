"""Every page that links lead to, over the store of a demo: nothing stands in anybody's way, on a phone or a wide screen.

With SCREENSHOTS=FOLDER each page's picture is left there, and with DEMO=FOLDER it is the store of that finished demo
(`make demo-tiny` leaves one in `.demo-tiny`): so the pictures in `docs/images/` were made.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.dashboard.conftest import browser_tab
from tests.dashboard.recorded import line, run_lines
from tests.dashboard.test_tasksets_pages import know_environment, task, upload
from tests.fleet.live_server import LiveServer

from hud.trace import new_id
from hud_platform.store import Store

pytestmark = pytest.mark.slow

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
GRAVE = ("serious", "critical")
IDENTIFIER = re.compile(r"[0-9a-f]{8}[0-9a-f-]*|(?<=/)\d+(?=/|$)")
ELSEWHERE = ("/signout", "/docs", "/static", "/openapi")
VIEWS = (("light", 1440, 900), ("dark", 360, 740))
WIDEST = 3840
FAULT = {"reward": None, "status": "error", "failure_kind": "environment", "error": "No page"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real `hud up` over what a demo left."""
    folder = tmp_path_factory.mktemp("demo")
    if played := os.environ.get("DEMO"):
        shutil.copytree(f"{played}/home", folder / "home")
    else:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
        subprocess.run(
            [sys.executable, "-m", "tests.dashboard.played_demo", str(folder)],
            check=True,
            env={**kept, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            timeout=280,
        )
    database = f"sqlite:///{folder}/home/hud.db"
    store = Store.open(folder / "home", database, None)
    know_environment(store)
    upload(store, task("apples"), task("pears", 2))
    store.close()
    made = LiveServer(folder / "home", "--workers", "0", "--database", database)
    made.start()
    yield made
    made.stop()


def record(server, name):
    """Report a job in which runs failed, and one never ended."""
    job = new_id()
    begun = {"name": name, "taskset_id": None, "group_size": 2, "host": "h", "at": 1}
    lines = [line(b"J", job, {**begun, "pid": None, "process_started": None})]
    for attempt, outcome in enumerate([0.0, 0.5, 1.0, FAULT, None]):
        known = {"job_id": job, "group_id": new_id(), "slug": "a", "model": "tiny"}
        known |= {"attempt": attempt, "started_at": 1}
        lines += run_lines(new_id(), known, outcome)
    server.client().post("/v2/ingest", content=b"".join(lines)).raise_for_status()
    return job


def pattern_of(path):
    return IDENTIFIER.sub("*", re.sub(r"^/models/[^/?]+", "/models/*", path.partition("?")[0]))


def test_no_page_has_a_grave_fault_of_accessibility_or_is_wider_than_a_phone(server, chromium):
    pictures = os.environ.get("SCREENSHOTS")
    jobs = [record(server, name) for name in ("before", "after")]
    compared = f"/jobs/compare?job={jobs[0]}&job={jobs[1]}"
    faults, seen, waiting = [], set(), ["/signin", "/jobs", compared, "/search?text=service"]
    linked = dict.fromkeys(map(pattern_of, waiting), "the test")
    with browser_tab(server, chromium) as tab:
        while waiting:
            path = waiting.pop(0)
            kind = pattern_of(path)
            seen.add(kind)
            for scheme, width, height in VIEWS:
                tab.emulate_media(color_scheme=scheme)
                tab.set_viewport_size({"width": width, "height": height})
                answer = tab.goto(path)
                if answer.status >= 400:
                    faults.append(f"{path}, linked to by {linked[kind]}: {answer.status}")
                    break
                where = f"{kind} ({scheme}, {width} px)"
                faults += [*grave_faults(tab, where), *overflow(tab, where)]
                if pictures:
                    name = kind.strip("/").replace("/", "-").replace("*", "one")
                    tab.screenshot(path=f"{pictures}/{name}-{scheme}-{width}.png")
            tab.set_viewport_size({"width": WIDEST, "height": 2000})
            faults += overflow(tab, f"{kind} ({WIDEST} px)")
            for link in links_of(tab):
                if pattern_of(link) not in linked:
                    linked[pattern_of(link)] = kind
                    waiting.append(link)
        assert faults == []
        assert len(seen) >= 15, sorted(seen)


def links_of(tab):
    found = tab.eval_on_selector_all("a[href^='/']", "all => all.map(a => a.getAttribute('href'))")
    return [
        link.partition("#")[0]
        for link in found
        if not link.startswith(ELSEWHERE) and not re.search(r"\.\w+$", link.partition("?")[0])
    ]


def grave_faults(tab, where):
    """Return what axe-core finds that stands in somebody's way."""
    tab.evaluate(AXE)
    result = tab.evaluate(
        "rules => axe.run(document, {resultTypes: ['violations'], runOnly: rules})", RULES
    )
    return [
        f"{where}: {one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in result["violations"]
        if one["impact"] in GRAVE
    ]


def overflow(tab, where):
    over = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return [f"{where}: {over} px wider than the window"] if over > 0 else []
