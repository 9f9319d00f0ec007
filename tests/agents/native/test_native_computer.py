"""The agent's computer, over a real browser: what is done shows, is recorded, and is refused in words."""

from __future__ import annotations

import asyncio
import base64
import shutil
from urllib.parse import quote

import pytest

from hud.agents import ScriptedAgent
from hud.environment import Environment
from hud.eval.rollouts import rollout
from hud.trace import Completion, ImageContent, ToolCall, ToolStep
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Chromium (scripts/setup-worlds)"
)
PAGE = """<!doctype html><title>shop</title><style>
body { margin: 0 } button { position: absolute; left: 100px; top: 50px; width: 200px; height: 40px }
input { position: absolute; left: 100px; top: 150px; width: 200px; height: 30px; box-sizing: border-box }
div { position: absolute; top: 2000px; height: 10px; width: 10px }
</style><button onclick="document.title = 'bought ' + document.querySelector('input').value
  + (event.shiftKey ? ' twice' : '')">Buy</button><input><div></div>"""


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))


def shop():
    env = Environment("shop")
    browser = env.browser(start_url=f"data:text/html,{quote(PAGE)}", viewport=(800, 600))

    @env.template()
    async def buy():
        """Buy a lamp."""
        yield "Buy a lamp."
        yield float(await browser.evaluate("document.title") == "bought lamp twice")

    return env, buy()


async def play(task, *turns):
    """Do each of `turns`, then answer; returns the run and what each call was answered."""

    def policy(messages, tools, trace):
        made = len(trace.tool_calls)
        if made == len(turns):
            return "done"
        call = ToolCall(id=f"c{made}", name="computer", arguments=turns[made])
        return Completion(tool_calls=[call])

    agent = ScriptedAgent(policy, max_steps=len(turns) + 1)
    run = await rollout(
        task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
    )
    steps = [step for step in run.trace.steps if isinstance(step, ToolStep)]
    return run, steps


@pytest.mark.slow
async def test_a_browser_is_used_as_somebody_would():
    _, task = shop()
    run, steps = await play(
        task,
        {"action": "screenshot"},
        {"action": "click", "x": 200, "y": 165},
        {"action": "type", "text": "lamb"},
        {"action": "key", "keys": ["Backspace"]},
        {"action": "type", "text": "p"},
        {"action": "click", "x": 200, "y": 70, "keys": ["shift"]},
        {"action": "scroll", "x": 400, "y": 300, "scroll_y": 200},
        {"action": "zoom", "region": [100, 100, 300, 200]},
        {"action": "cursor_position"},
    )
    assert (run.reward, run.error) == (1.0, None)
    assert not any(step.result.is_error for step in steps)
    pictures = [
        base64.b64decode(block.data)
        for step in steps
        for block in step.result.content
        if isinstance(block, ImageContent)
    ]
    assert len(pictures) == 8
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert len(set(pictures)) > 5
    assert steps[0].result.text.startswith("data:text/html")
    assert steps[-1].result.text == "x=400, y=300"
    shown = [step.step_id for step in steps if "screenshot" in step.extra]
    assert len(shown) >= 5


async def test_what_cannot_be_done_is_said_and_the_run_goes_on():
    _, task = shop()
    run, steps = await play(
        task,
        {"action": "click", "x": 900, "y": 10},
        {"action": "click", "x": "left", "y": 10},
        {"action": "drag", "path": [[1, 1]]},
        {"action": "key", "keys": ["NoSuchKey"]},
        {"action": "key"},
        {"action": "dance"},
        {"action": "click", "x": 1, "y": 1, "button": "fourth"},
        {"action": "wait", "seconds": float("inf")},
        {"action": "zoom", "region": [5, 5, 5, 9]},
        {"action": "navigate", "url": "http://127.0.0.1:9/"},
        {"action": "forward"},
        "not json",
        {"action": "screenshot"},
    )
    assert (run.reward, run.error) == (0.0, None)
    told = [step.result.text for step in steps]
    assert [step.result.is_error for step in steps] == [True] * 12 + [False]
    assert "800 by 600" in told[0]
    assert "NoSuchKey" in told[3]
    assert "there are screenshot, click" in told[5]
    assert "127.0.0.1:9" in told[9]


@pytest.mark.slow
async def test_it_goes_places_and_back():
    _, task = shop()
    run, steps = await play(
        task,
        {"action": "navigate", "url": "about:blank"},
        {"action": "back"},
        {"action": "forward"},
    )
    assert run.error is None
    where = [step.result.text for step in steps]
    assert where[0] == where[2] == "about:blank"
    assert where[1].startswith(("http", "data"))


@pytest.mark.parametrize(
    "url", ["data:text/html,mine", "javascript:alert(1)", " file:///etc/passwd"]
)
async def test_an_address_of_another_scheme_than_the_webs_is_refused(url):
    _, task = shop()
    run, (step,) = await play(task, {"action": "navigate", "url": url})
    assert run.error is None
    assert step.result.is_error
    assert "navigate opens http and https addresses, not" in step.result.text


@pytest.mark.slow
async def test_four_at_once_have_browsers_of_their_own():
    four = asyncio.Semaphore(4)

    async def one():
        async with four:
            _, task = shop()
            return await play(
                task,
                {"action": "click", "x": 200, "y": 165},
                {"action": "type", "text": "lamp"},
                {"action": "click", "x": 200, "y": 70, "keys": ["shift"]},
            )

    played = await asyncio.gather(*(one() for _ in range(8)))
    assert [(run.reward, run.error) for run, _ in played] == [(1.0, None)] * 8
