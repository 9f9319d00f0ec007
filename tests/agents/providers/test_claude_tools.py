"""Claude's own shell, editor and computers: what it does with them is done, in order."""

from __future__ import annotations

import pytest
from tests.agents.rooms import STREAMED, Native, computer, played, tool_steps
from tests.agents.servers.anthropic import KEY, AnthropicMessages, act, call, say

from hud.agents import ClaudeAgent

pytestmark = pytest.mark.usefixtures("waits")


async def play(task, server, *tools, **config):
    config = {"model": "claude-sonnet-4-6", "base_url": server.url, "api_key": KEY, **config}
    return await played(task, ClaudeAgent(**config), *tools)


@STREAMED
async def test_shell_and_editor_are_claudes_own(task, stream):
    bash, editor = Native("bash"), Native("editor")
    view = {"command": "view", "path": "/a", "view_range": [1, 2]}
    server = AnthropicMessages(
        [call("bash", "t1", command="ls"), call("str_replace_based_edit_tool", "t2", **view)],
        [call("bash", "t3", restart=True)],
        [say("door")],
    )
    async with server:
        run = await play(task, server, bash, editor, stream=stream)
    assert (run.reward, server.refused) == (1.0, [])
    declared = {tool.get("type"): tool["name"] for tool in server.requests[0]["tools"]}
    assert declared["bash_20250124"] == "bash"
    assert declared["text_editor_20250728"] == "str_replace_based_edit_tool"
    assert (bash.did, editor.did) == ([{"command": "ls"}, {"restart": True}], [view])
    assert [step.call.name for step in tool_steps(run)] == ["bash", "editor", "bash"]


ACTIONS = [
    ("screenshot", {}, {"action": "screenshot"}),
    (
        "left_click",
        {"coordinate": [10, 20], "text": "ctrl"},
        {"action": "click", "x": 10, "y": 20, "button": "left", "count": 1, "keys": ["ctrl"]},
    ),
    ("right_click", {}, {"action": "click", "button": "right", "count": 1}),
    (
        "triple_click",
        {"coordinate": [1, 2]},
        {"action": "click", "x": 1, "y": 2, "button": "left", "count": 3},
    ),
    (
        "left_click_drag",
        {"start_coordinate": [1, 2], "coordinate": [3, 4]},
        {"action": "drag", "path": [[1, 2], [3, 4]]},
    ),
    ("mouse_move", {"coordinate": [5, 6]}, {"action": "move", "x": 5, "y": 6}),
    ("left_mouse_down", {}, {"action": "mouse_down"}),
    ("left_mouse_up", {}, {"action": "mouse_up"}),
    ("key", {"text": "ctrl+shift+t"}, {"action": "key", "keys": ["ctrl", "shift", "t"]}),
    ("key", {"text": "ctrl++"}, {"action": "key", "keys": ["ctrl", "+"]}),
    ("hold_key", {"text": "a", "duration": 2}, {"action": "hold_key", "keys": ["a"], "seconds": 2}),
    ("type", {"text": "lamp"}, {"action": "type", "text": "lamp"}),
    (
        "scroll",
        {"coordinate": [7, 8], "scroll_direction": "up", "scroll_amount": 3},
        {"action": "scroll", "x": 7, "y": 8, "scroll_x": 0, "scroll_y": -300},
    ),
    ("wait", {"duration": 1}, {"action": "wait", "seconds": 1}),
    ("cursor_position", {}, {"action": "cursor_position"}),
    ("zoom", {"region": [0, 0, 9, 9]}, {"action": "zoom", "region": [0, 0, 9, 9]}),
]


@STREAMED
@pytest.mark.parametrize(
    ("model", "tool", "beta"),
    [
        ("claude-opus-5-5", "computer_toolset_20260801", None),
        ("claude-sonnet-4-6", "computer_20251124", "computer-use-2025-11-24"),
        ("claude-haiku-4-5-20251001", "computer_20250124", "computer-use-2025-01-24"),
    ],
)
async def test_a_computer_is_the_one_that_the_model_knows(task, stream, model, tool, beta):
    machine = computer(broken=("cursor_position",))
    newest = beta is None
    batch = [
        act(name, f"t{number}", **given)
        if newest
        else call("computer", f"t{number}", action=name, **given)
        for number, (name, given, _) in enumerate(ACTIONS)
    ]
    async with AnthropicMessages(batch, [say("door")]) as server:
        run = await play(task, server, machine, stream=stream, model=model)
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    kinds = [one.get("type") for one in server.requests[0]["tools"]]
    assert tool in kinds
    assert machine.did == [ours for _, _, ours in ACTIONS]
    assert beta is None or beta in server.headers[0]["anthropic-beta"]
    results = server.requests[1]["messages"][2]["content"]
    assert len(results) == len(ACTIONS)
    refused = [result for result in results if result.get("is_error")]
    assert [result["tool_use_id"] for result in refused] == ["t14"]


SEEN = [
    ("claude-sonnet-4-6", (1024, 768), (1024, 768)),
    ("claude-sonnet-4-6", (1920, 1080), (1456, 819)),
    ("claude-opus-5", (1920, 1080), (1920, 1080)),
    ("claude-opus-5", (3840, 2160), (2576, 1449)),
    ("claude-haiku-4-5", (1075, 1520), (924, 1307)),
]


@pytest.mark.parametrize(("model", "size", "seen"), SEEN)
async def test_points_are_where_claude_saw_them(task, model, size, seen):
    """The sizes are those of Anthropic's documentation."""
    machine = computer(size=size)
    middle = [seen[0] // 2, seen[1] // 2]
    newest = model == "claude-opus-5"
    turn = [
        act("left_click", "t1", coordinate=middle)
        if newest
        else call("computer", "t1", action="left_click", coordinate=middle)
    ]
    async with AnthropicMessages(turn, [say("door")]) as server:
        run = await play(task, server, machine, model=model)
    assert (run.reward, server.refused) == (1.0, [])
    (click,) = machine.did
    assert abs(click["x"] - size[0] // 2) <= 1
    assert abs(click["y"] - size[1] // 2) <= 1
    shown = [
        (tool["display_width_px"], tool["display_height_px"])
        for tool in server.requests[0]["tools"]
        if "display_width_px" in tool
    ]
    assert shown == ([] if newest else [seen])


async def test_a_key_that_is_repeated_is_pressed_so_often_and_answered_once(task):
    machine = computer()
    turn = [call("computer", "t1", action="key", text="Down", repeat=3)]
    async with AnthropicMessages(turn, [say("door")]) as server:
        run = await play(task, server, machine)
    assert (run.reward, server.refused) == (1.0, [])
    assert machine.did == [{"action": "key", "keys": ["Down"]}] * 3
    assert len(tool_steps(run)) == 3


async def test_a_browser_can_be_sent_to_an_address(task):
    machine = computer("browser")
    turn = [call("navigate_browser", "t1", action="navigate", url="http://shop")]
    async with AnthropicMessages(turn, [say("door")]) as server:
        run = await play(task, server, machine, model="claude-opus-5-5")
    assert (run.reward, server.refused) == (1.0, [])
    assert machine.did == [{"action": "navigate", "url": "http://shop"}]
