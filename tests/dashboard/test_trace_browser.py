"""A run in a real browser: walked by keyboard, opened far down, scrubbed through, and watched while it goes on."""

import pytest
from tests.dashboard.made_traces import add_step, at, conversation, long_trace, put_run, text

from hud_platform.access.teams import Teams
from hud_platform.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(server):
    """The store of the server, which is filled beside it."""
    opened = Store.open(server.home)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def team(store):
    return Teams(store).default().id


@pytest.fixture(scope="module")
def long_run(store, team):
    return put_run(store, long_trace(700, 40), team=team)


def current(tab):
    return tab.locator(".step.current")


def wait_for_current(tab, number):
    tab.locator(f"#step-{number}.current").wait_for()


def test_steps_and_failures_are_walked_by_keyboard(tab, long_run):
    tab.goto(f"/trace/{long_run}")
    tab.locator("#timeline[data-read]").wait_for()
    for _ in range(3):
        tab.keyboard.press("j")
    wait_for_current(tab, 3)
    tab.keyboard.press("k")
    wait_for_current(tab, 2)
    assert tab.url.endswith("#step-2")
    tab.keyboard.press("f")
    wait_for_current(tab, 194)
    assert "failed" in current(tab).get_attribute("class")
    tab.keyboard.press("f")
    wait_for_current(tab, 388)
    tab.keyboard.press("Shift+F")
    wait_for_current(tab, 194)


def test_a_step_far_down_is_opened_by_its_link_and_stands_in_sight(tab, long_run):
    tab.goto(f"/trace/{long_run}#step-555")
    wait_for_current(tab, 555)
    tab.wait_for_function(
        """() => {
          const top = document.querySelector("#step-555").getBoundingClientRect().top;
          const stuck = document.querySelector(".instruments").getBoundingClientRect().bottom;
          return top >= stuck - 2 && top < stuck + 200;
        }"""
    )
    assert tab.locator("#step-300").count() == 0
    tab.keyboard.press("s")
    tab.keyboard.type("42")
    tab.keyboard.press("Enter")
    wait_for_current(tab, 42)


def test_windows_come_as_one_scrolls(tab, long_run):
    tab.goto(f"/trace/{long_run}")
    tab.locator("#timeline[data-read]").wait_for()
    tab.locator("#step-1").wait_for()
    assert tab.locator("#step-150").count() == 0
    tab.mouse.move(500, 500)
    tab.wait_for_function(
        """() => {
          scrollBy(0, 2000);
          return document.querySelector("#step-350") !== null;
        }""",
        polling=100,
    )


def test_screenshots_are_scrubbed_and_lead_to_their_steps(tab, long_run):
    tab.goto(f"/trace/{long_run}")
    slider = tab.get_by_label("Screenshot", exact=True)
    slider.wait_for()
    tab.keyboard.press("v")
    tab.keyboard.press("Home")
    first = tab.locator(".shots output").inner_text()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowRight")
    assert tab.locator(".shots output").inner_text() != first
    assert "3 of" in tab.locator(".shots output").inner_text()
    tab.wait_for_function("document.querySelector('.large img').naturalWidth === 320")
    number = tab.locator(".shots-head a").get_attribute("href").removeprefix("#step-")
    tab.get_by_role("link", name="Go to the step").click()
    wait_for_current(tab, number)


def test_the_timeline_leads_to_its_steps(tab, long_run):
    tab.goto(f"/trace/{long_run}")
    tab.locator("#timeline[data-read]").wait_for()
    box = tab.locator(".drawing svg").bounding_box()
    tab.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 10)
    current(tab).wait_for()
    tab.wait_for_function(
        """() => {
          const number = Number(document.querySelector(".step.current")?.dataset.number);
          return number > 330 && number < 370;
        }"""
    )


def test_a_nested_run_opens_in_its_place_and_by_link(tab, store, team):
    inner = [{"step_id": number, **step} for number, step in enumerate(conversation(), 1)]
    nested = {"trace_id": "c" * 32, "status": "completed", "steps": inner}
    steps = [
        {"source": "subagent", "subagent": nested, "extra": {"tool": "ask_reader"}, **at(0, 3)}
    ]
    trace = put_run(store, steps, team=team)
    tab.goto(f"/trace/{trace}")
    tab.get_by_text("Its steps").click()
    tab.locator('[id="step-1.3"]').get_by_text("I look at the file.").wait_for()
    tab.goto("/jobs")
    tab.goto(f"/trace/{trace}#step-1.4")
    tab.locator('[id="step-1.4"].current').wait_for()


def test_a_run_that_goes_on_grows_on_the_page(tab, store, team):
    trace = put_run(store, conversation()[:2], over=False, team=team)
    tab.goto(f"/trace/{trace}")
    tab.locator("#step-2").wait_for()
    tab.evaluate("window.same = true")
    add_step(store, trace, 3, conversation()[2], team)
    tab.locator("#step-3").get_by_text("I look at the file.").wait_for()
    add_step(store, trace, 4, conversation()[3], team)
    tab.locator("#step-4").wait_for()
    put_run(store, conversation(), trace_id=trace, team=team)
    tab.locator("#step-7").wait_for()
    tab.locator("#run").get_by_text("completed").wait_for()
    assert tab.locator(".window > .step").count() == 7
    assert tab.evaluate("window.same"), "the page was not loaded again"


def test_hostile_text_runs_nothing_and_refused_images_say_so(server, chromium, tab, store, team):
    evil = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
    broken = {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2Zy8+"}
    steps = [{"source": "tool", "result": {"content": [text(evil), broken]}, "extra": {}}]
    trace = put_run(store, steps, slug=evil, team=team)
    state = tab.context.storage_state()
    # Another tab: the browser's own report of the refused image is no error here.
    context = chromium.new_context(base_url=server.url, storage_state=state)
    page = context.new_page()
    page.goto(f"/trace/{trace}")
    page.locator("#step-1").get_by_text("This image is not shown").wait_for()
    assert page.evaluate("window.hacked") is None
    context.close()
