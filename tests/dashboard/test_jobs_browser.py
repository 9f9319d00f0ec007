"""Jobs in a real browser on a real server: filtered, followed while they run, compared, cancelled."""

import httpx
import pytest
from playwright.sync_api import expect
from tests.dashboard.recorded import line, run_lines

from hud.trace import new_id


class Reported:
    """A job that a client reports to the server while somebody looks at it."""

    def __init__(self, server, name, tasks):
        self.api: httpx.Client = server.client()
        self.id = new_id()
        self.api.post(f"/v2/trace/job/{self.id}/enter", json={"name": name, "group": 2})
        self.runs = {task: [new_id(), new_id()] for task in tasks}
        for task, traces in self.runs.items():
            for trace in traces:
                body = {"job_id": self.id, "task_slug": task, "model": "tiny", "group_id": new_id()}
                self.api.post(f"/v2/trace/{trace}/enter", json=body)

    def end(self, task, attempt, reward):
        grade = {"score": reward, "content": "", "done": True}
        body = {"status": "completed", "reward": reward, "evaluation_result": grade}
        self.api.post(f"/v2/trace/{self.runs[task][attempt]}/exit", json=body)


@pytest.mark.slow
def test_a_job_is_followed_while_it_runs_and_nothing_reloads(tab, server):
    job = Reported(server, "followed", ["first", "second"])
    tab.goto(f"/jobs/{job.id}")
    tab.evaluate("window.sameDocument = true")
    expect(tab.get_by_label("Run 1: running")).to_have_count(2)
    job.end("first", 0, 1.0)
    expect(tab.get_by_label("Run 1: 1.000")).to_have_count(1)
    expect(tab.locator(".facts")).to_contain_text("1 of 4")
    for task, attempt in (("first", 1), ("second", 0), ("second", 1)):
        job.end(task, attempt, 0.25)
    expect(tab.locator(".facts .badge")).to_have_text("completed")
    assert tab.evaluate("window.sameDocument")
    assert tab.locator("[data-live]").count() == 0


@pytest.mark.slow
def test_the_list_shows_new_jobs_and_keeps_what_was_ticked(tab, server):
    first = Reported(server, "ticked", ["a"])
    tab.goto("/jobs")
    box = tab.get_by_label("Compare ticked", exact=False)
    box.check()
    Reported(server, "appears", ["a"])
    expect(tab.get_by_role("link", name="appears")).to_be_visible()
    expect(box).to_be_checked()
    first.end("a", 0, 0.5)
    expect(tab.locator(f"#job-{first.id}")).to_contain_text("1 of 2")
    expect(box).to_be_checked()


@pytest.mark.slow
def test_filters_answer_while_one_types_and_stay_in_the_address(tab, server):
    for name in ("needle one", "haystack"):
        Reported(server, name, [])
    tab.goto("/jobs")
    tab.keyboard.press("/")
    tab.keyboard.type("needle")
    expect(tab.get_by_role("link", name="haystack")).to_have_count(0)
    expect(tab.get_by_role("link", name="needle one")).to_be_visible()
    tab.wait_for_url("**/jobs?text=needle")
    tab.reload()
    expect(tab.get_by_label("Search", exact=True)).to_have_value("needle")
    expect(tab.get_by_role("link", name="haystack")).to_have_count(0)


@pytest.mark.slow
def test_the_checkpoints_of_a_model_are_offered_once_it_is_chosen(tab, server):
    job, checkpoint = new_id(), new_id()
    begun = {"name": "pinned", "taskset_id": None, "group_size": 1, "host": "h", "at": 1}
    known = {"job_id": job, "group_id": new_id(), "slug": "a", "attempt": 0, "started_at": 1}
    lines = [
        line(b"J", job, {**begun, "pid": None, "process_started": None}),
        *run_lines(new_id(), {**known, "model": "trained"}, 1.0, checkpoint),
    ]
    server.client().post("/v2/ingest", content=b"".join(lines)).raise_for_status()
    tab.goto("/jobs")
    tab.get_by_label("Model").select_option("trained")
    tab.get_by_label("Checkpoint").select_option(checkpoint)
    tab.wait_for_url(f"**checkpoint={checkpoint}*")
    expect(tab.get_by_role("link", name="pinned")).to_be_visible()


@pytest.mark.slow
def test_two_jobs_are_compared_from_the_list(tab, server):
    for name, reward in (("before", 0.0), ("after", 1.0)):
        job = Reported(server, f"pair {name}", ["a"])
        for attempt in (0, 1):
            job.end("a", attempt, reward)
    tab.goto("/jobs?text=pair")
    tab.get_by_label("Compare pair before", exact=False).check()
    tab.get_by_label("Compare pair after", exact=False).check()
    tab.get_by_role("button", name="Compare").click()
    expect(tab.get_by_role("heading", name="Comparison of 2 jobs")).to_be_visible()
    expect(tab.get_by_text("+1.000 may be chance")).to_be_visible()


@pytest.mark.slow
def test_the_failing_run_is_one_key_away(tab, server):
    job, trace = new_id(), new_id()
    begun = {"name": "broken", "taskset_id": None, "group_size": 1, "host": "h", "at": 1}
    known = {"job_id": job, "group_id": new_id(), "slug": "a", "attempt": 0, "started_at": 1}
    failed = {"reward": None, "status": "error", "failure_kind": "environment", "error": "No page"}
    lines = [
        line(b"J", job, {**begun, "pid": None, "process_started": None}),
        *run_lines(trace, known, failed),
    ]
    server.client().post("/v2/ingest", content=b"".join(lines)).raise_for_status()
    tab.goto(f"/jobs/{job}")
    expect(tab.get_by_role("region", name="Failures", exact=True)).to_contain_text("No page")
    tab.keyboard.press("f")
    tab.wait_for_url(f"**/trace/{trace}")


@pytest.mark.slow
def test_rewards_are_seen_on_a_phone_without_scrolling_sideways(tab, server):
    job = Reported(server, "a job whose name is as long as names of jobs are", ["first"])
    job.end("first", 0, 0.0)
    job.end("first", 1, 0.5)
    tab.set_viewport_size({"width": 390, "height": 844})
    for place, row in (
        (f"/jobs?text={job.id[:12]}", f"#job-{job.id}"),
        (f"/jobs/{job.id}", ".tasks tbody tr"),
    ):
        tab.goto(place)
        box = tab.locator(row).locator(".reward").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
