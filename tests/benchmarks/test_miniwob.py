"""`miniwob`: pages of the package in a browser of each run, done with mouse and keyboard, graded by the page."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from tests.benchmarks.played import NOTHING, installed, rewards

from hud.agents import ScriptedAgent
from hud.agents.native.computer import ComputerTool
from hud.environment.current_run import entered
from hud.environment.screens import screen_sandbox
from hud.errors import RolloutError
from hud.eval import NullRecorder
from hud_benchmarks.miniwob.benchmarks import LEFT_OUT, PACKAGE, PAGES, SEEDS

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


async def center(page, element, seed=1000000):
    """Return where an element of a page is: agents see the screen alone."""
    from hud_benchmarks.miniwob.environment import browser, env

    async with env.run() as run:
        await run.start("page", {"name": page, "seed": seed})
        with entered(run):
            return await browser.evaluate(CENTER % element)


async def click(screen, point):
    await screen.move(tuple(point))
    await screen.mouse_down("left")
    await screen.mouse_up("left")


def test_every_page_of_the_package_is_a_task_or_left_out_by_name(miniwob):
    from importlib import metadata

    folder = metadata.distribution(PACKAGE.name).locate_file("miniwob/html/miniwob")
    assert {page.stem for page in folder.glob("*.html")} == {*PAGES, *LEFT_OUT}
    assert not set(SEEDS["train"]) & set(SEEDS["held-out"])
    assert {split: len(miniwob.tasks(split)) for split in miniwob.sizes} == miniwob.sizes


@pytest.mark.slow
async def test_a_page_is_done_with_mouse_and_keyboard(miniwob):
    text, button = [await center("enter-text", element) for element in ("#tt", "#subbtn")]

    async def write(run):
        (word,) = re.findall(r'Enter "(\w+)"', run.prompt_text)
        screen = await run.open("cdp")
        await click(screen, text)
        await screen.type_text(word)
        await click(screen, button)
        await screen.goto("about:blank")

    run = await played(miniwob.tasks(), "enter-text", write)
    assert (run.error, run.reward) == (None, 1.0), "the reward stays where the page is left later"


@pytest.mark.slow
async def test_a_page_gives_one_reward(miniwob):
    """A wrong answer stays one, whatever is clicked afterwards."""
    text, button = [await center("enter-text", element) for element in ("#tt", "#subbtn")]

    async def twice(run):
        (word,) = re.findall(r'Enter "(\w+)"', run.prompt_text)
        screen = await run.open("cdp")
        await click(screen, button)
        await click(screen, text)
        await screen.type_text(word)
        await click(screen, button)

    run = await played(miniwob.tasks(), "enter-text", twice)
    assert (run.error, run.reward) == (None, 0.0)


async def test_a_page_that_was_left_gives_nothing(miniwob):
    async def leave(run):
        await (await run.open("cdp")).goto("about:blank")

    run = await played(miniwob.tasks(), "click-test", leave)
    assert (run.error, run.reward) == (None, 0.0)
    assert "not the task's any more" in run.grade.content


SOLVED = "core.endEpisode(1)"
FORGED = "var WOB_DONE_GLOBAL=true,WOB_RAW_REWARD_GLOBAL=1,WOB_REWARD_REASON='';"
ADDRESSES = [
    f"javascript:{SOLVED}",
    f" JavaScript:{SOLVED}",
    f"java\tscript:{SOLVED}",
    f"javascript:1;{SOLVED}",
    f"data:text/html,<script>{FORGED}</script>",
    f"data:,{FORGED}",
    "blob:http://127.0.0.1/0",
    "file:///tmp/",
    "view-source:http://127.0.0.1/",
    "filesystem:http://127.0.0.1/temporary/x",
    "chrome://version",
]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_that_is_code_or_a_document_of_the_agents_opens_nothing(miniwob, address):
    results = []

    async def navigate(run):
        screen = await run.open("cdp")
        tool = ComputerTool(screen)
        results.append(await tool.call({"action": "navigate", "url": address}))
        with pytest.raises(RolloutError):
            await screen.goto(address)
        with pytest.raises(RolloutError):
            await screen.call("Target.createTarget", {"url": address})
        assert (await screen.url()).startswith("http://127.0.0.1:")

    run = await played(miniwob.tasks(), "click-test", navigate)
    assert (run.error, run.reward) == (None, 0.0)
    assert results[0].is_error


COMMANDS = {
    "Runtime.evaluate": {"expression": SOLVED},
    "Runtime.callFunctionOn": {"functionDeclaration": f"() => {SOLVED}", "executionContextId": 1},
    "Runtime.compileScript": {"expression": SOLVED, "sourceURL": "", "persistScript": True},
    "Runtime.addBinding": {"name": "report"},
    "Runtime.globalLexicalScopeNames": {},
    "Page.addScriptToEvaluateOnNewDocument": {"source": FORGED, "runImmediately": True},
    "Page.addScriptToEvaluateOnLoad": {"scriptSource": FORGED},
    "Page.reload": {"scriptToEvaluateOnLoad": FORGED},
    "Page.setDocumentContent": {"frameId": "0", "html": f"<script>{FORGED}</script>"},
    "Page.setBypassCSP": {"enabled": True},
    "Page.createIsolatedWorld": {"frameId": "0"},
    "Debugger.enable": {},
    "DOM.setOuterHTML": {"nodeId": 1, "outerHTML": f"<img src=x onerror={SOLVED}>"},
    "Fetch.enable": {},
    "Network.enable": {},
    "Storage.clearDataForOrigin": {"origin": "*", "storageTypes": "all"},
    "Target.exposeDevToolsProtocol": {"targetId": "0"},
}


@pytest.mark.slow
async def test_an_agent_executes_no_javascript(miniwob):
    refused = []

    async def command(run):
        screen = await run.open("cdp")
        for method, params in COMMANDS.items():
            with pytest.raises(RolloutError, match="screen, mouse, keyboard and http addresses"):
                await screen.call(method, params)
            refused.append(method)

    run = await played(miniwob.tasks(), "click-test", command)
    assert (run.error, run.reward) == (None, 0.0)
    assert refused == list(COMMANDS)


TYPED = [
    f"<img src=x onerror={SOLVED}>",
    f"<svg onload={SOLVED}>",
    f"<script>{SOLVED}</script>",
    f"<iframe srcdoc='<script>parent.{SOLVED}</script>'></iframe>",
    f"<iframe src='javascript:parent.{SOLVED}'></iframe>",
    f"<object data='data:text/html,<script>parent.{SOLVED}</script>'></object>",
    f"<a id=link href='javascript:{SOLVED}'>x</a>",
]


@pytest.mark.parametrize("text", TYPED)
@pytest.mark.parametrize("put", ["document.body.innerHTML += %s", "$('body').append(%s)"])
async def test_text_that_a_page_takes_for_html_executes_nothing(miniwob, text, put):
    from hud_benchmarks.miniwob.environment import browser, env

    async with env.run() as run:
        await run.start("page", {"name": "email-inbox", "seed": 7})
        with entered(run):
            # Not within the evaluation itself, which the policy of the page does not bind.
            await browser.evaluate(
                f"new Promise(done => setTimeout(() => {{ try {{ {put % json.dumps(text)} }} "
                "finally { done() }}))"
            )
            await browser.evaluate("document.getElementById('link')?.click()")
            await browser.page.settle()
        assert (await run.grade("", None))["score"] == 0.0


@pytest.mark.slow
async def test_a_screenshot_beyond_a_message_s_limit_is_the_agent_s_failure(miniwob, monkeypatch):
    """Its run had no reward: an agent could leave a wrong answer ungraded."""
    monkeypatch.setattr(screen_sandbox, "_STREAM_BYTES", 1 << 17)  # A large picture takes long.
    region = {"x": 0, "y": 0, "width": 3000, "height": 3000, "scale": 3}

    async def shoot(run):
        screen = await run.open("cdp")
        with pytest.raises(RolloutError):
            await screen.call("Page.captureScreenshot", {"format": "png", "clip": region})

    run = await played(miniwob.tasks(), "click-test", shoot)
    assert (run.failure_kind, run.reward) == ("agent", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["reload", "address", "fragment and reload", "back"])
async def test_another_copy_of_the_page_earns_nothing(miniwob, way):
    """Its first attempt failed; the page that is loaded again draws another problem, and starts at a click."""
    button = await center("click-test", "#subbtn")

    async def again(run):
        screen = await run.open("cdp")
        url = await screen.url()
        if way == "reload":
            await screen.call("Page.reload")
        elif way == "address":
            await screen.goto(url)
        elif way == "back":
            await screen.goto(url.replace("click-test", "click-color"))
            await screen.goto(url)
            await screen.back()
            await screen.forward()
        else:
            await screen.goto(f"{url}#x")
            await screen.call("Page.reload")
        await screen.settle()
        await click(screen, (80, 105))  # START
        await click(screen, button)

    run = await played(miniwob.tasks(), "click-test", again)
    assert (run.error, run.reward) == (None, 0.0)


@pytest.mark.slow
async def test_the_policy_of_a_page_refuses_nothing_of_its_own(miniwob):
    from hud_benchmarks.miniwob.environment import browser, env

    refused = []
    async with env.run() as run:
        with entered(run):
            browser.page.devtools.listen(lambda method, params, _: refused.append((page, params)) if method == "Log.entryAdded" else None)  # fmt: skip
            await browser.page.call("Log.enable")
        for page in PAGES:
            await run.start("page", {"name": page, "seed": 7})
            await run.grade("", None)
    # jQuery sets a handler to see whether it is set; it is not executed.
    of_pages = [
        entry for entry in refused if not str(entry[1]["entry"].get("url")).endswith("jquery.js")
    ]
    assert [entry for entry in of_pages if "Security Policy" in str(entry)] == []


@pytest.mark.slow
async def test_doing_nothing_scores_0(miniwob):
    tasks = miniwob.tasks("train").filter(["click-test-3", "tic-tac-toe-0"])
    assert await rewards(tasks, NOTHING) == {"click-test-3": 0.0, "tic-tac-toe-0": 0.0}


@pytest.mark.slow
async def test_every_page_begins_and_asks_the_same_for_the_same_seed(miniwob):
    from hud_benchmarks.miniwob.environment import env

    async with env.run() as run:
        for page in PAGES:
            asked = [(await run.start("page", {"name": page, "seed": 7})).prompt for _ in range(2)]
            assert asked[0] == asked[1], page
            assert not asked[0].startswith("\n"), page
            assert (await run.grade("", None))["score"] == 0.0, page
