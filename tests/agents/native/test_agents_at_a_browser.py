"""Every kind of agent buys a lamp in a real browser: in its provider's words, with what it saw in the trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from tests.agents.rooms import agent_steps, played, tool_steps
from tests.agents.servers import anthropic, gemini, openai_chat, openai_responses
from tests.agents.servers.loopback import LoopbackProvider

from hud.agents.agent_kinds import agent_of, settings_of
from hud.agents.providers.agent_kind import model_kinds
from hud.environment import Environment

pytestmark = [
    pytest.mark.usefixtures("waits"),
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="needs Chromium (scripts/setup-worlds)"
    ),
]
PAGE = """<!doctype html><title>shop</title><style>
body { margin: 0 } button { position: absolute; left: 100px; top: 50px; width: 200px; height: 40px }
input { position: absolute; left: 100px; top: 150px; width: 200px; height: 30px; box-sizing: border-box }
</style><button onclick="document.title = 'bought ' + document.querySelector('input').value">Buy</button><input>"""
FIELD, BUY = (200, 165), (200, 70)


def on_grid(point: tuple[int, int]) -> dict[str, int]:
    """A point of a screen of 800 by 600 as Gemini gives it."""
    return {"x": -(-point[0] * 1000 // 800), "y": -(-point[1] * 1000 // 600)}


def at(point: tuple[int, int]) -> dict[str, int]:
    return {"x": point[0], "y": point[1]}


CLAUDE = [
    [anthropic.think("Where is it?", "s1"), anthropic.act("screenshot", "t1")],
    [
        anthropic.act("left_click", "t2", coordinate=list(FIELD)),
        anthropic.act("type", "t3", text="lamp"),
    ],
    [anthropic.act("left_click", "t4", coordinate=list(BUY))],
    [anthropic.say("done")],
]
OPENAI = [
    [openai_responses.think("Where?"), openai_responses.use("u1", {"type": "screenshot"})],
    [
        openai_responses.think("There."),
        openai_responses.use(
            "u2",
            {"type": "click", "button": "left", **at(FIELD)},
            {"type": "type", "text": "lamp"},
        ),
    ],
    [openai_responses.use("u3", {"type": "click", "button": "left", **at(BUY)})],
    [openai_responses.say("done")],
]
NEWER = [
    [gemini.think("Where?"), gemini.call("take_screenshot", "f1", "AAAA", intent="See.")],
    [gemini.call("click", "f2", **on_grid(FIELD)), gemini.call("type", "f3", text="lamp")],
    [gemini.call("click", "f4", **on_grid(BUY), intent="Buy.")],
    [gemini.say("done")],
]
OLDER = [
    [gemini.call("open_web_browser", "f1")],
    [gemini.call("type_text_at", "f2", **on_grid(FIELD), text="lamp", press_enter=False)],
    [gemini.call("click_at", "f3", **on_grid(BUY))],
    [gemini.say("done")],
]
CHAT = [
    openai_chat.call(("computer", "c1", {"action": "screenshot"})),
    openai_chat.call(
        ("computer", "c2", {"action": "click", **at(FIELD)}),
        ("computer", "c3", {"action": "type", "text": "lamp"}),
    ),
    openai_chat.call(("computer", "c4", {"action": "click", **at(BUY)})),
    openai_chat.say("done"),
]


@dataclass(frozen=True)
class Case:
    kind: str
    model: str
    provider: Callable[..., LoopbackProvider]
    key: str
    script: list[Any]
    path: str = ""


CASES = [
    Case("claude", "claude-opus-5-5", anthropic.AnthropicMessages, anthropic.KEY, CLAUDE),
    Case(
        "openai", "gpt-5.6", openai_responses.OpenAIResponses, openai_responses.KEY, OPENAI, "/v1"
    ),
    Case(
        "operator", "gpt-5.6", openai_responses.OpenAIResponses, openai_responses.KEY, OPENAI, "/v1"
    ),
    Case("gemini", "gemini-3.5-flash", gemini.GeminiContent, gemini.KEY, NEWER),
    Case(
        "gemini_cua",
        "gemini-2.5-computer-use-preview-10-2025",
        gemini.GeminiContent,
        gemini.KEY,
        OLDER,
    ),
    Case("openai_compatible", "mine", openai_chat.OpenAIChat, openai_chat.KEY, CHAT, "/v1"),
]


def test_no_kind_is_left_out():
    assert {case.kind for case in CASES} == set(model_kinds())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.kind for case in CASES])
async def test_a_lamp_is_bought(case):
    env = Environment("shop")
    browser = env.browser(start_url=f"data:text/html,{quote(PAGE)}", viewport=(800, 600))

    @env.template()
    async def buy():
        """Buy a lamp."""
        yield "Buy a lamp."
        yield float(await browser.evaluate("document.title") == "bought lamp")

    async with case.provider(*case.script) as server:
        settings = settings_of(
            case.kind,
            {"model": case.model, "base_url": server.url + case.path, "api_key": case.key},
            whose="test",
        )
        run = await played(buy(), agent_of(case.kind, settings))
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    steps = tool_steps(run)
    assert [step.call.name for step in steps] == ["computer"] * len(steps)
    shown = [step.extra["screenshot"] for step in steps if "screenshot" in step.extra]
    assert len(shown) >= 2
    assert all(block["mimeType"] == "image/png" for block in shown)
    assert len({block["data"] for block in shown}) == len(shown)
    assert agent_steps(run)[-1].content == "done"
