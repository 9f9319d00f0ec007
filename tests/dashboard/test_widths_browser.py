"""Tables at the widths of a laptop and of a phone: nothing that decides is cut off."""

import pytest
from tests.dashboard.conftest import browser_tab
from tests.dashboard.made_traces import conversation, put_run
from tests.dashboard.recorded import record
from tests.dashboard.test_models import made, record_rewards
from tests.dashboard.test_train import make_model, record_run, score
from tests.fleet.live_server import LiveServer

from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig

LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}
TASK = {"env": "tickets", "id": "route", "args": {"subject": "refund"}}
CLIPPED = """all => all.filter(one => one.offsetParent
    && one.getBoundingClientRect().right > one.closest('.table').getBoundingClientRect().right + 1)
    .map(one => one.textContent.trim())"""
TALL = """all => all.filter(one => one.offsetHeight > 1.5 * parseFloat(getComputedStyle(one).lineHeight))
    .map(one => one.textContent)"""
WRAPPED = """all => all.filter(one => one.offsetParent && one.getClientRects().length > 1)
    .map(one => one.textContent)"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a trained model `m`, its training run, and two jobs, before and after."""
    home = tmp_path_factory.mktemp("widths") / "home"
    parts = create_app(PlatformConfig(home)).state.parts
    model = make_model(parts)
    first = made(parts, model, 1)
    head = made(parts, model, 12, first)
    for checkpoint, reward in ((None, 0.1), (first, 0.5), (head, 0.9)):
        record_rewards(parts, model, checkpoint, {f"t{n}": reward * (n % 2) for n in range(10)})
    scores = [score(0, 0.1), score(10, 0.3, checkpoint_id=head)]
    record_run(parts, model, scores=scores)
    priced = {"reward": 1.0, "cost_usd": 12.5}
    name = "a-policy-with-a-name-of-forty-characters"
    record(parts, "priced", {"t": [priced] * 1200}, model=name, checkpoint=head)
    for name, reward in (("before", 0.0), ("after", 1.0)):
        tasks = {f"a-task-with-a-name-{n}": [reward, reward] for n in range(6)}
        record(parts, name, tasks, task=TASK, taskset="ticket_routing")
    trace = put_run(parts.store, conversation())
    parts.close()
    made_server = LiveServer(home, "--workers", "0")
    made_server.trace = trace
    made_server.start()
    yield made_server
    made_server.stop()


def compared(server):
    jobs = {job["name"]: job["id"] for job in server.client().get("/v2/jobs").json()["items"]}
    return f"/jobs/compare?job={jobs['before']}&job={jobs['after']}"


def pages(server):
    """Return the addresses of pages with tables."""
    jobs = server.client().get("/v2/jobs").json()["items"]
    (job,) = [job["id"] for job in jobs if job["name"] == "after"]
    lists = ("jobs", "models", "train", "tasksets", "environments", "fleet", "people")
    more = ("/models/m", "/models/m/compare", f"/jobs/{job}", f"/trace/{server.trace}")
    return [
        *(f"/{name}" for name in lists),
        *more,
        "/people/teams",
        "/people/audit",
        compared(server),
    ]


@pytest.mark.slow
def test_on_a_laptop_no_column_is_cut_off_and_ages_take_one_line(server, chromium):
    with browser_tab(server, chromium) as tab:
        tab.set_viewport_size(LAPTOP)
        for path in pages(server):
            tab.goto(path)
            assert tab.eval_on_selector_all(".table th, .table td", CLIPPED) == [], path
            assert tab.eval_on_selector_all("time", WRAPPED) == [], path


@pytest.mark.slow
def test_on_a_phone_no_number_is_cut_off(server, chromium):
    with browser_tab(server, chromium) as tab:
        tab.set_viewport_size(PHONE)
        for path in pages(server):
            tab.goto(path)
            assert tab.eval_on_selector_all(".table th, .table td", CLIPPED) == [], path


@pytest.mark.slow
def test_the_counts_of_a_histogram_are_drawn_whole_and_many_runs_of_a_task_fit_a_phone(
    server, chromium
):
    jobs = server.client().get("/v2/jobs").json()["items"]
    (job,) = [job["id"] for job in jobs if job["name"] == "priced"]
    with browser_tab(server, chromium) as tab:
        tab.set_viewport_size(PHONE)
        tab.goto(f"/jobs/{job}")
        count = tab.locator(".histogram .count").bounding_box()
        svg = tab.locator(".histogram").bounding_box()
        inside = count["x"] + count["width"] <= svg["x"] + svg["width"]
        visible = "getComputedStyle(document.querySelector('.histogram')).overflow"
        assert inside or tab.evaluate(visible) == "visible"
        assert tab.locator(".heat").bounding_box()["height"] <= PHONE["height"] * 2
        name = tab.locator(".tasks tbody th a")
        row = tab.locator(".tasks tbody tr").bounding_box()
        assert name.bounding_box()["y"] < row["y"] + 20


@pytest.mark.slow
def test_on_a_phone_a_comparison_shows_verdict_difference_and_tasks(server, chromium):
    with browser_tab(server, chromium) as tab:
        tab.set_viewport_size(PHONE)
        tab.goto(compared(server))
        assert tab.eval_on_selector_all(".table th, .table td", CLIPPED) == []
        task = tab.get_by_text("a-task-with-a-name-0")
        assert task.bounding_box()["width"] >= 120


@pytest.mark.slow
def test_the_lanes_of_a_timeline_have_names_of_one_line(server, chromium):
    with browser_tab(server, chromium) as tab:
        tab.set_viewport_size(LAPTOP)
        tab.goto(f"/trace/{server.trace}")
        tab.locator(".lanes").wait_for()
        assert tab.eval_on_selector_all(".lanes span", TALL) == []
