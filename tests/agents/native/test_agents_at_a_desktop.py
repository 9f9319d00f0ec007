"""Agents write a note in a real terminal of a real desktop, each in its provider's words."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from tests.agents.native.test_agents_at_a_browser import CASES, at, on_grid
from tests.agents.rooms import agent_steps, played, tool_steps
from tests.agents.servers import anthropic, gemini, openai_responses

from hud.agents.agent_kinds import agent_of, settings_of
from hud.environment import Environment

pytestmark = [
    pytest.mark.usefixtures("waits"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in ("Xvfb", "x11vnc", "openbox", "xterm", "bwrap")),
        reason="needs a desktop's programs (scripts/setup-worlds)",
    ),
]
TERMINAL = (200, 200)
LINE = "echo lamp > note.txt"

SCRIPTS = {
    "claude": [
        [anthropic.think("Where is it?", "s1"), anthropic.act("screenshot", "t1")],
        [
            anthropic.act("left_click", "t2", coordinate=list(TERMINAL)),
            anthropic.act("type", "t3", text=LINE),
        ],
        [anthropic.act("key", "t4", text="Return")],
        [anthropic.act("wait", "t5", duration=3)],
        [anthropic.say("done")],
    ],
    "operator": [
        [openai_responses.think("Where?"), openai_responses.use("u1", {"type": "screenshot"})],
        [
            openai_responses.use(
                "u2",
                {"type": "click", "button": "left", **at(TERMINAL)},
                {"type": "type", "text": LINE},
            )
        ],
        [openai_responses.use("u3", {"type": "keypress", "keys": ["ENTER"]}, {"type": "wait"})],
        [openai_responses.say("done")],
    ],
    "gemini_cua": [
        [
            gemini.call(
                "type_text_at",
                "f1",
                **on_grid(TERMINAL),
                text=LINE,
                press_enter=True,
                clear_before_typing=False,
            )
        ],
        [gemini.call("wait_5_seconds", "f2")],
        [gemini.say("done")],
    ],
}
AT_DESKTOPS = [replace(case, script=SCRIPTS[case.kind]) for case in CASES if case.kind in SCRIPTS]


@pytest.mark.slow
@pytest.mark.parametrize("case", AT_DESKTOPS, ids=[case.kind for case in AT_DESKTOPS])
async def test_a_note_is_written(case):
    env = Environment("desk")
    desktop = env.desktop(programs=["xterm -geometry 80x24+20+40"], size=(800, 600))

    @env.template()
    async def note():
        """Write a note."""
        yield "Write lamp into note.txt."
        yield float((await desktop.read("note.txt")) == b"lamp\n")

    async with case.provider(*case.script) as server:
        settings = settings_of(
            case.kind,
            {"model": case.model, "base_url": server.url + case.path, "api_key": case.key},
            whose="test",
        )
        run = await played(note(), agent_of(case.kind, settings))
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    steps = tool_steps(run)
    assert {step.call.name for step in steps} == {"computer"}
    shown = [step.extra["screenshot"]["data"] for step in steps if "screenshot" in step.extra]
    assert len(set(shown)) == len(shown) >= 1
    assert agent_steps(run)[-1].content == "done"
