"""`miniwob`: pages of the package in a browser of each run, done with mouse and keyboard, graded by the page."""

from __future__ import annotations

import re
import shutil

import pytest
from tests.benchmarks.played import NOTHING, installed, rewards

from hud.agents import ScriptedAgent
from hud.benchmarks.miniwob.benchmarks import LEFT_OUT, PACKAGE, PAGES, SEEDS
from hud.eval import NullRecorder

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("chromium", "bwrap")),
    reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
)
CENTER = """(() => {
  const box = document.querySelector(%r).getBoundingClientRect();
  return [Math.round(box.left + box.width / 2), Math.round(box.top + box.height / 2)];
})()"""


@pytest.fixture(scope="module")
def miniwob():
    return installed("miniwob")


async def played(tasks, page, script):
    job = await tasks.filter([f"{page}-1000000"]).run(
        ScriptedAgent(script), recorder=NullRecorder()
    )
    return job.runs[0]


async def click(screen, element):
    x, y = await screen.evaluate(CENTER % element)
    await screen.move((x, y))
    await screen.mouse_down("left")
    await screen.mouse_up("left")


def test_every_page_of_the_package_is_a_task_or_left_out_by_name(miniwob):
    from importlib import metadata

    folder = metadata.distribution(PACKAGE.name).locate_file("miniwob/html/miniwob")
    assert {page.stem for page in folder.glob("*.html")} == {*PAGES, *LEFT_OUT}
    assert not set(SEEDS["train"]) & set(SEEDS["held-out"])
    assert {split: len(miniwob.tasks(split)) for split in miniwob.sizes} == miniwob.sizes


async def test_a_page_is_done_with_mouse_and_keyboard(miniwob):
    async def write(run):
        (word,) = re.findall(r'Enter "(\w+)"', run.prompt_text)
        screen = await run.open("cdp")
        await click(screen, "#tt")
        await screen.type_text(word)
        await click(screen, "#subbtn")

    run = await played(miniwob.tasks(), "enter-text", write)
    assert (run.error, run.reward) == (None, 1.0)


async def test_a_page_gives_one_reward(miniwob):
    """A wrong answer stays one, whatever is clicked afterwards."""

    async def twice(run):
        (word,) = re.findall(r'Enter "(\w+)"', run.prompt_text)
        screen = await run.open("cdp")
        await click(screen, "#subbtn")
        await click(screen, "#tt")
        await screen.type_text(word)
        await click(screen, "#subbtn")

    run = await played(miniwob.tasks(), "enter-text", twice)
    assert (run.error, run.reward) == (None, 0.0)


async def test_a_page_that_was_left_gives_nothing(miniwob):
    async def leave(run):
        await (await run.open("cdp")).goto("about:blank")

    run = await played(miniwob.tasks(), "click-test", leave)
    assert (run.error, run.reward) == (None, 0.0)
    assert "not the task's any more" in run.grade.content


async def test_doing_nothing_scores_0(miniwob):
    tasks = miniwob.tasks("train").filter(["click-test-3", "tic-tac-toe-0"])
    assert await rewards(tasks, NOTHING) == {"click-test-3": 0.0, "tic-tac-toe-0": 0.0}


@pytest.mark.slow
async def test_every_page_begins_and_asks_the_same_for_the_same_seed(miniwob):
    from hud.benchmarks.miniwob.environment import env

    async with env.run() as run:
        for page in PAGES:
            asked = [(await run.start("page", {"name": page, "seed": 7})).prompt for _ in range(2)]
            assert asked[0] == asked[1], page
            assert not asked[0].startswith("\n"), page
            assert (await run.grade("", None))["score"] == 0.0, page
