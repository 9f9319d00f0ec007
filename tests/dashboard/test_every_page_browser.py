"""Every page that links lead to, over the store of a demo: nothing stands in anybody's way, on a phone or a wide screen.

With SCREENSHOTS=FOLDER each page's picture is left there; `docs/images/` holds those of the last time.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.dashboard.conftest import browser_tab
from tests.fleet.live_server import LiveServer

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
GRAVE = ("serious", "critical")
IDENTIFIER = re.compile(r"[0-9a-f]{8}[0-9a-f-]*|(?<=/)\d+(?=/|$)")
ELSEWHERE = ("/signout", "/docs", "/static", "/openapi")
VIEWS = (("light", 1440, 900), ("dark", 360, 740))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real `hud up` over what a demo left."""
    folder = tmp_path_factory.mktemp("demo")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HUD_")}
    subprocess.run(
        [sys.executable, "-m", "tests.dashboard.played_demo", str(folder)],
        check=True,
        env={**kept, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        timeout=280,
    )
    made = LiveServer(
        folder / "home", "--workers", "0", "--database", f"sqlite:///{folder}/home/hud.db"
    )
    made.start()
    yield made
    made.stop()


def pattern_of(path):
    return IDENTIFIER.sub("*", path.partition("?")[0])


def test_no_page_has_a_grave_fault_of_accessibility_or_is_wider_than_a_phone(server, chromium):
    pictures = os.environ.get("SCREENSHOTS")
    faults, seen, waiting = [], set(), ["/signin", "/jobs"]
    linked = dict.fromkeys(waiting, "the test")
    with browser_tab(server, chromium) as tab:
        while waiting:
            path = waiting.pop(0)
            kind = pattern_of(path)
            if kind in seen:
                continue
            seen.add(kind)
            for scheme, width, height in VIEWS:
                tab.emulate_media(color_scheme=scheme)
                tab.set_viewport_size({"width": width, "height": height})
                answer = tab.goto(path)
                if answer.status >= 400:
                    faults.append(f"{path}, linked to by {linked[kind]}: {answer.status}")
                    break
                faults += faults_of(tab, f"{kind} ({scheme}, {width} px)")
                if pictures:
                    name = kind.strip("/").replace("/", "-").replace("*", "one")
                    tab.screenshot(path=f"{pictures}/{name}-{scheme}-{width}.png")
            found = links_of(tab)
            waiting += [one for one in found if linked.setdefault(pattern_of(one), kind) == kind]
        assert faults == []
        assert len(seen) >= 15, sorted(seen)


def links_of(tab):
    found = tab.eval_on_selector_all("a[href^='/']", "all => all.map(a => a.getAttribute('href'))")
    return [
        link.partition("#")[0]
        for link in found
        if not link.startswith(ELSEWHERE) and not re.search(r"\.\w+$", link.partition("?")[0])
    ]


def faults_of(tab, where):
    tab.evaluate(AXE)
    result = tab.evaluate(
        "rules => axe.run(document, {resultTypes: ['violations'], runOnly: rules})", RULES
    )
    found = [
        f"{where}: {one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
        for one in result["violations"]
        if one["impact"] in GRAVE
    ]
    over = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if over > 0:
        found.append(f"{where}: {over} px wider than the window")
    return found
