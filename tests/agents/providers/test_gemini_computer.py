"""Gemini's own computer, of today and of 2.5: actions on its grid, safety decisions, what is left out."""

from __future__ import annotations

import pytest
from tests.agents.rooms import STREAMED, agent_steps, computer, played, tool_steps
from tests.agents.servers.gemini import KEY, GeminiContent, call, say

from hud.agents import GeminiAgent, GeminiCUAAgent

pytestmark = pytest.mark.usefixtures("waits")
LEGACY = "gemini-2.5-computer-use-preview-10-2025"
SIZE = (1000, 500)


async def play(task, server, *tools, agent_type=GeminiAgent, **config):
    config = {"base_url": server.url, "api_key": KEY, **config}
    return await played(task, agent_type(**config), *tools)


NEWER = [
    ("take_screenshot", {}, [{"action": "screenshot"}]),
    (
        "click",
        {"x": 500, "y": 500, "intent": "Open it."},
        [{"action": "click", "x": 500, "y": 250, "button": "left", "count": 1}],
    ),
    (
        "double_click",
        {"x": 1000, "y": 1000},
        [{"action": "click", "x": 999, "y": 499, "button": "left", "count": 2}],
    ),
    (
        "right_click",
        {"x": 0, "y": 0},
        [{"action": "click", "x": 0, "y": 0, "button": "right", "count": 1}],
    ),
    ("move", {"x": 10, "y": 10}, [{"action": "move", "x": 10, "y": 5}]),
    ("mouse_down", {"x": 10, "y": 10}, [{"action": "mouse_down", "x": 10, "y": 5}]),
    ("mouse_up", {"x": 20, "y": 20}, [{"action": "mouse_up", "x": 20, "y": 10}]),
    ("type", {"text": "lamp"}, [{"action": "type", "text": "lamp"}]),
    (
        "type",
        {"text": "lamp", "press_enter": True},
        [{"action": "type", "text": "lamp"}, {"action": "key", "keys": ["Enter"]}],
    ),
    ("press_key", {"key": "Enter"}, [{"action": "key", "keys": ["Enter"]}]),
    ("hotkey", {"keys": ["Control", "t"]}, [{"action": "key", "keys": ["Control", "t"]}]),
    (
        "scroll",
        {"x": 10, "y": 10, "direction": "up", "magnitude_in_pixels": 120},
        [{"action": "scroll", "x": 10, "y": 5, "scroll_x": 0, "scroll_y": -120}],
    ),
    (
        "drag_and_drop",
        {"start_x": 0, "start_y": 0, "end_x": 100, "end_y": 100},
        [{"action": "drag", "path": [[0, 0], [100, 50]]}],
    ),
    ("wait", {}, [{"action": "wait", "seconds": 1}]),
]
BROWSING = [
    ("navigate", {"url": "http://shop"}, [{"action": "navigate", "url": "http://shop"}]),
    ("go_back", {}, [{"action": "back"}]),
    ("go_forward", {}, [{"action": "forward"}]),
]
OLDER = [
    ("open_web_browser", {}, [{"action": "screenshot"}]),
    (
        "click_at",
        {"x": 371, "y": 470},
        [{"action": "click", "x": 371, "y": 235, "button": "left", "count": 1}],
    ),
    ("hover_at", {"x": 10, "y": 10}, [{"action": "move", "x": 10, "y": 5}]),
    (
        "type_text_at",
        {"x": 10, "y": 10, "text": "lamp"},
        [
            {"action": "click", "x": 10, "y": 5, "button": "left", "count": 1},
            {"action": "key", "keys": ["ctrl", "a"]},
            {"action": "key", "keys": ["Backspace"]},
            {"action": "type", "text": "lamp"},
            {"action": "key", "keys": ["Enter"]},
        ],
    ),
    ("key_combination", {"keys": "Control+A"}, [{"action": "key", "keys": ["Control", "A"]}]),
    (
        "scroll_at",
        {"x": 10, "y": 10, "direction": "down"},
        [{"action": "scroll", "x": 10, "y": 5, "scroll_x": 0, "scroll_y": 400}],
    ),
    (
        "scroll_document",
        {"direction": "left"},
        [{"action": "scroll", "x": 500, "y": 250, "scroll_x": -800, "scroll_y": 0}],
    ),
    (
        "drag_and_drop",
        {"x": 0, "y": 0, "destination_x": 100, "destination_y": 100},
        [{"action": "drag", "path": [[0, 0], [100, 50]]}],
    ),
    ("wait_5_seconds", {}, [{"action": "wait", "seconds": 5}]),
]


@STREAMED
@pytest.mark.parametrize(
    ("model", "environment", "actions"),
    [
        ("gemini-3.5-flash", "linux", NEWER),
        ("gemini-3.5-flash", "browser", NEWER + BROWSING),
        (LEGACY, "browser", OLDER + BROWSING),
    ],
)
async def test_what_gemini_does_at_a_computer_is_done(task, stream, model, environment, actions):
    machine = computer(environment, ("wait",), SIZE)
    turn = [call(name, f"f{number}", **given) for number, (name, given, _) in enumerate(actions)]
    async with GeminiContent(turn, [say("door")]) as server:
        run = await play(
            task, server, machine, agent_type=GeminiCUAAgent, model=model, stream=stream
        )
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    assert machine.did == [ours for _, _, several in actions for ours in several]
    responses = [part["functionResponse"] for part in server.requests[1]["contents"][2]["parts"]]
    assert {response["response"]["url"] for response in responses} == {
        "http://shop/lamp",
        "about:blank",
    }
    waited = [one for one in responses if "error" in one["response"]]
    assert [one["name"] for one in waited] == [
        name for name, _, ours in actions if ours[0]["action"] == "wait"
    ]
    assert all("parts" in one for one in responses if one not in waited)


async def test_why_gemini_did_something_is_in_the_trace(task):
    turn = [call("click", "f1", x=1, y=1, intent="Open the shop.")]
    async with GeminiContent(turn, [say("door")]) as server:
        run = await play(task, server, computer("browser"), agent_type=GeminiCUAAgent)
    assert (run.reward, server.refused) == (1.0, [])
    assert agent_steps(run)[0].extra["intents"] == {"f1": "Open the shop."}


async def test_a_tool_that_is_called_as_an_action_has_another_name(task):
    turn = [call("navigate_2", "f1"), call("navigate", "f2", url="http://shop")]
    async with GeminiContent(turn, [say("door")]) as server:
        run = await play(task, server, computer("browser"), model="gemini-3.5-flash")
    assert (run.reward, server.refused) == (1.0, [])
    assert [step.call.name for step in tool_steps(run)] == ["navigate", "computer"]


async def test_a_desktop_of_an_older_model_has_nothing_of_a_browser(task):
    async with GeminiContent([say("door")]) as server:
        await play(
            task, server, computer("linux", size=SIZE), agent_type=GeminiCUAAgent, model=LEGACY
        )
    excluded = server.requests[0]["tools"][0]["computerUse"]["excludedPredefinedFunctions"]
    assert {"navigate", "go_back", "search"} <= set(excluded)
    assert server.refused == []


async def test_a_model_without_a_computer_has_a_function(task):
    machine = computer("browser")
    turn = [call("computer", "f1", action="screenshot")]
    async with GeminiContent(turn, [say("door")]) as server:
        run = await play(task, server, machine, model="gemini-3-pro-preview")
    assert (run.reward, server.refused) == (1.0, [])
    assert machine.did == [{"action": "screenshot"}]


DECISION = {"decision": "require_confirmation", "explanation": "It costs money."}


@STREAMED
async def test_a_safety_decision_is_acknowledged_and_said_so(task, stream):
    machine = computer("browser")
    turn = [call("click", "f1", x=1, y=1, safety_decision=DECISION)]
    async with GeminiContent(turn, [say("door")]) as server:
        run = await play(task, server, machine, agent_type=GeminiCUAAgent, stream=stream)
    assert (run.reward, server.refused, len(machine.did)) == (1.0, [], 1)
    (check,) = agent_steps(run)[0].extra["safety_checks"]
    assert (check["explanation"], check["acknowledged"]) == ("It costs money.", True)


@STREAMED
async def test_or_ends_the_run_where_that_is_asked_for(task, stream):
    machine = computer("browser")
    turn = [say("I would buy."), call("click", "f1", x=1, y=1, safety_decision=DECISION)]
    async with GeminiContent(turn) as server:
        run = await play(
            task,
            server,
            machine,
            agent_type=GeminiCUAAgent,
            stream=stream,
            safety_checks="stop",
        )
    (step,) = agent_steps(run)
    assert (step.refusal, step.finish_reason) == ("It costs money.", "safety_check")
    assert (run.trace.stop_reason, machine.did) == ("done", [])
