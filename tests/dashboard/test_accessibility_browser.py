"""axe-core looks at every page, in light and dark, and finds no serious violation; narrow windows scroll one way."""

from pathlib import Path

import pytest
from tests.dashboard.recorded import line, run_lines

from hud.trace import new_id

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
SERIOUS = ("serious", "critical")
FAULT = {"reward": None, "status": "error", "failure_kind": "environment", "error": "No page"}


@pytest.fixture(scope="module")
def pages(server):
    """The addresses of all pages, each with something on it."""
    jobs = [record(server, name) for name in ("before", "after")]
    job = server.client().get(f"/jobs/{jobs[0]}.json").json()
    run = job["tasks"][0]["runs"][0]["trace_id"]
    return [
        "/jobs",
        f"/jobs/{jobs[0]}?task=a",
        f"/jobs/compare?job={jobs[0]}&job={jobs[1]}",
        f"/trace/{run}",
        "/models",
        "/train",
        "/tasksets",
        "/environments",
        "/people",
        "/jobs/nothing",
    ]


def record(server, name):
    job = new_id()
    begun = {"name": name, "taskset_id": None, "group_size": 2, "host": "h", "at": 1}
    lines = [line(b"J", job, {**begun, "pid": None, "process_started": None})]
    for attempt, outcome in enumerate([0.0, 0.5, 1.0, FAULT, None]):
        known = {"job_id": job, "group_id": new_id(), "slug": "a", "model": "tiny"}
        known |= {"attempt": attempt, "started_at": 1}
        lines += run_lines(new_id(), known, outcome)
    server.client().post("/v2/ingest", content=b"".join(lines)).raise_for_status()
    return job


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.timeout(300)
def test_no_page_has_a_serious_violation(server, chromium, pages, scheme):
    # axe is a script of ours for tests, which the policy of the pages refuses as it should.
    context = chromium.new_context(base_url=server.url, color_scheme=scheme, bypass_csp=True)
    context.set_extra_http_headers({"authorization": f"Bearer {server.key}"})
    tab = context.new_page()
    found = []
    for path in ["/signin", *pages]:
        tab.goto(path)
        tab.add_script_tag(path=AXE)
        found += [
            (path, violation["id"], violation["nodes"][0]["html"][:200])
            for violation in tab.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
            if violation["impact"] in SERIOUS
        ]
    context.close()
    assert found == []


@pytest.mark.parametrize("width", [360, 1440, 3840])
def test_no_page_is_wider_than_its_window(server, chromium, pages, width):
    context = chromium.new_context(base_url=server.url, viewport={"width": width, "height": 800})
    context.set_extra_http_headers({"authorization": f"Bearer {server.key}"})
    tab = context.new_page()
    wider = []
    for path in pages:
        tab.goto(path)
        if tab.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            wider.append(path)
    context.close()
    assert wider == []
