"""Claude's agent, through Anthropic's own SDK, against a server that refuses what the documented wire forbids."""

from __future__ import annotations

import asyncio

import pytest
from tests.agents.providers.anthropic import BINDING, KEY, AnthropicMessages, act, call, say, think
from tests.agents.providers.loopback import (
    PNG,
    BreakOff,
    Hang,
    HangUp,
    Raw,
    Status,
    StreamError,
    closing_agent,
)

from hud.agents import Agent, ClaudeAgent, asking
from hud.environment import Environment
from hud.errors import RefusedError
from hud.eval import rollouts
from hud.eval.recording import NullRecorder
from hud.eval.rollouts import rollout
from hud.trace import ImageContent, TextContent, ToolResult, ToolSpec, ToolStep

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PICTURE = ImageContent(data=PNG, mime_type="image/png")


@pytest.fixture(autouse=True)
def waits(monkeypatch, tmp_path):
    """Nobody waits between attempts; how long one would have is returned."""
    found = []
    sleep = asyncio.sleep

    async def at_once(seconds):
        found.append(seconds)
        await sleep(0)

    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "HUD_API_URL", "HUD_GATEWAY_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(asking, "sleep", at_once)
    monkeypatch.setattr(rollouts, "RETRY_WAIT_SECONDS", 0.01)
    return found


@pytest.fixture
def task():
    env = Environment("rooms")

    @env.tool
    async def look(where: str = "around") -> str:
        """Look somewhere."""
        return f"{where}: a door"

    @env.tool
    async def picture() -> ToolResult:
        """Take a picture."""
        return ToolResult(content=[TextContent(text="here:"), PICTURE])

    @env.tool(name="doors.open wide")
    async def wide() -> str:
        """Open it."""
        return "it is open"

    @env.tool
    async def silent() -> ToolResult:
        """Fail without a word."""
        return ToolResult(is_error=True)

    @env.template()
    async def escape(prompt: str = "Get out."):
        """Find the way out."""
        answer = yield prompt
        yield float(answer == "door")

    return escape()


class Equipped(Agent):
    """An agent that has tools of providers' own kinds beside the environment's."""

    def __init__(self, agent, *tools):
        self.agent, self.tools = agent, tools

    async def __call__(self, run):
        for tool in self.tools:
            tool.run = run
            run.attach(tool)
        await self.agent(run)


class Native:
    """A tool of a provider's own kind, which remembers what it was told."""

    def __init__(self, kind, broken=(), **options):
        self.spec = ToolSpec(name=kind, native=kind, description="Ours.", options=options)
        self.broken = broken
        self.called = 0
        self.did = []

    async def call(self, arguments, timeout=None):
        # The first take the longest: together, they would overtake one another.
        self.called += 1
        await asyncio.sleep(max(0.0, 0.02 - 0.001 * self.called))
        self.did.append(arguments)
        if arguments.get("action") in self.broken:
            return ToolResult.of_text("there is no such place", is_error=True)
        if self.spec.native == "computer":
            return ToolResult(content=[PICTURE])
        return ToolResult.of_text("done")


class Growing:
    """A tool whose call brings another."""

    spec = ToolSpec(name="grow")

    async def call(self, arguments, timeout=None):
        self.run.attach(Native("bash"))
        return ToolResult.of_text("grown")


def computer(environment="linux", broken=()):
    return Native("computer", broken, width=1024, height=768, environment=environment)


async def play(task, server, *tools, **config):
    config = {"model": "claude-sonnet-4-6", "base_url": server.url, "api_key": KEY, **config}
    async with closing_agent(ClaudeAgent(**config)) as agent:
        return await rollout(
            task,
            Equipped(agent, *tools),
            runtime=lambda task: task.environment.run(),
            recorder=NullRecorder(),
        )


def agent_steps(run):
    return [step for step in run.trace.steps if step.source == "agent"]


def tool_steps(run):
    return [step for step in run.trace.steps if isinstance(step, ToolStep)]


@STREAMED
async def test_thoughts_go_back_as_they_came_and_parallel_calls_are_all_answered(task, stream):
    server = AnthropicMessages(
        [think("first", "s1"), call("look", "t1", where="up"), call("look", "t2")],
        [think("", "s2"), say("I go."), call("picture", "t3"), call("silent", "t4")],
        [say("door")],
    )
    async with server:
        run = await play(
            task,
            server,
            stream=stream,
            system_prompt="Be brief.",
            thinking={"type": "adaptive"},
            effort="low",
        )
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    first, second, third = server.requests
    assert first["system"][0]["text"] == "Be brief."
    assert (first["thinking"], first["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    assert [turn["role"] for turn in third["messages"]] == ["user", "assistant"] * 2 + ["user"]
    assert [block["type"] for block in second["messages"][1]["content"]] == [
        "thinking",
        "tool_use",
        "tool_use",
    ]
    assert [block["content"][0]["text"] for block in second["messages"][2]["content"]] == [
        "up: a door",
        "around: a door",
    ]
    shown, silent = third["messages"][4]["content"]
    assert [part["type"] for part in shown["content"]] == ["text", "image"]
    assert silent["is_error"]
    steps = agent_steps(run)
    assert [step.reasoning for step in steps] == ["first", None, None]
    assert [step.finish_reason for step in steps] == ["tool_calls", "tool_calls", "stop"]
    assert [len(step.tool_calls) for step in steps] == [2, 2, 0]
    assert steps[1].content == "I go."


@STREAMED
async def test_tokens_and_their_cost_are_in_the_trace(task, stream):
    async with AnthropicMessages([say("door")]) as server:
        run = await play(task, server, stream=stream)
    usage = run.trace.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 20, 30)
    dollars = 60 * 3.0 + 30 * 0.3 + 10 * 3.75 + 20 * 15.0
    assert usage.cost_usd == pytest.approx(dollars / 1e6)


async def test_the_prefix_of_the_conversation_is_cached(task):
    turns = [[call("look", f"t{number}")] for number in range(4)]
    async with AnthropicMessages(*turns, [say("door")]) as server:
        run = await play(task, server, system_prompt="Be brief.")
    assert (run.reward, server.refused) == (1.0, [])
    last = server.requests[-1]
    assert "cache_control" in last["system"][-1]
    users = [turn["content"] for turn in last["messages"] if turn["role"] == "user"]
    marked = ["cache_control" in blocks[-1] for blocks in users]
    assert marked == [False] * (len(users) - 2) + [True, True]


@STREAMED
async def test_a_refusal_is_recorded_as_one_and_its_calls_are_not_made(task, stream):
    refusal = {
        "content": [say("I"), call("look", "t1"), call("look", "t2")],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "I will not."},
    }
    async with AnthropicMessages(refusal) as server:
        run = await play(task, server, stream=stream, auto_respond=True)
    (step,) = agent_steps(run)
    assert (step.refusal, step.finish_reason) == ("I will not. (cyber)", "refusal")
    assert (run.trace.stop_reason, tool_steps(run)) == ("done", [])


@STREAMED
async def test_what_tools_answer_can_be_cited(task, stream):
    note = {
        "type": "char_location",
        "cited_text": "a door",
        "document_index": 0,
        "document_title": "look",
        "start_char_index": 8,
        "end_char_index": 14,
        "file_id": None,
    }
    found = {
        "type": "web_search_result_location",
        "cited_text": "doors open",
        "encrypted_index": "E",
        "title": "Doors",
        "url": "https://example.org",
    }
    server = AnthropicMessages(
        [call("look", "t1")], [say("It is "), say("a door", note), say(" that opens.", found)]
    )
    async with server:
        run = await play(
            task,
            server,
            stream=stream,
            citations_enabled=True,
            hosted_tools=[{"type": "web_search_20250305", "name": "web_search"}],
        )
    (result,) = server.requests[1]["messages"][2]["content"]
    assert result["content"][0]["source"]["data"] == "around: a door"
    assert run.trace.content == "It is a door that opens."
    first, second = agent_steps(run)[-1].citations
    assert (first.text, first.source, first.start_index, first.end_index) == (
        "a door",
        "look",
        8,
        14,
    )
    assert (second.text, second.source, second.title) == (
        "doors open",
        "https://example.org",
        "Doors",
    )
    assert server.refused == []


@STREAMED
async def test_a_paused_turn_is_gone_on_with(task, stream):
    search = {
        "type": "server_tool_use",
        "id": "srv1",
        "name": "web_search",
        "input": {"query": "doors"},
    }
    found = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}
    server = AnthropicMessages(
        {"content": [say("Let me see."), search], "stop_reason": "pause_turn"},
        [found, call("look", "t1")],
        [say("door")],
    )
    hosted = [{"type": "web_search_20250305", "name": "web_search"}]
    async with server:
        run = await play(task, server, stream=stream, hosted_tools=hosted)
    assert (run.reward, server.refused) == (1.0, [])
    steps = agent_steps(run)
    assert [step.usage.llm_call_count for step in steps] == [2, 1]
    assert steps[0].usage.prompt_tokens == 200
    assert [block["type"] for block in server.requests[2]["messages"][1]["content"]] == [
        "text",
        "server_tool_use",
        "web_search_tool_result",
        "tool_use",
    ]


async def test_code_runs_on_in_the_container_it_ran_in(task):
    ran = {"content": [call("look", "t1")], "container": {"id": "box", "expires_at": "2026-12-01"}}
    hosted = [{"type": "code_execution_20250825", "name": "code_execution"}]
    async with AnthropicMessages(ran, [say("door")]) as server:
        await play(task, server, hosted_tools=hosted)
    assert [body.get("container") for body in server.requests] == [None, "box"]


@STREAMED
async def test_a_turn_that_was_cut_off_ends_the_run_or_is_gone_on_from(task, stream):
    cut = {"content": [say("hm"), call("look", "t1", wh="")], "stop_reason": "max_tokens"}
    async with AnthropicMessages(cut) as server:
        run = await play(task, server, stream=stream, max_tokens=64)
    assert (server.requests[0]["max_tokens"], run.trace.stop_reason) == (64, "length")
    assert (agent_steps(run)[0].finish_reason, run.trace.content) == ("length", "hm")
    async with AnthropicMessages(cut, [say("door")]) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.reward, server.refused, tool_steps(run)) == (1.0, [], [])


@STREAMED
async def test_a_thought_that_was_cut_off_is_recorded_and_not_sent_back(task, stream):
    cut = {"content": [think("so long", "")], "stop_reason": "max_tokens"}
    async with AnthropicMessages(cut, [say("door")]) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.reward, server.refused) == (1.0, [])
    assert agent_steps(run)[0].reasoning == "so long"
    assert [turn["role"] for turn in server.requests[1]["messages"]] == ["user"]


async def test_turns_that_may_take_long_are_streamed(task):
    async with AnthropicMessages([call("look", "t1")], [say("door")]) as server:
        run = await play(task, server, max_tokens=64_000, model="claude-opus-5")
    assert run.reward == 1.0
    assert [body.get("stream") for body in server.requests] == [True, True]


async def test_a_budget_of_thoughts_fits_the_turn_or_is_left_out(task):
    thinking = {"type": "enabled", "budget_tokens": 2_000}
    turns = [[think("hm", "s1"), call("look", "t1")], [say("door")]]
    async with AnthropicMessages(*turns) as server:
        run = await play(task, server, thinking=thinking, max_tokens=2_010, total_tokens=2_015)
    assert (run.reward, server.refused) == (1.0, [])
    assert ["thinking" in body for body in server.requests] == [True, False]


async def test_names_that_the_wire_refuses_are_changed_and_found_again(task):
    async with AnthropicMessages([call("doors_open_wide", "t1")], [say("door")]) as server:
        run = await play(task, server)
    (step,) = tool_steps(run)
    assert (step.call.name, step.result.text) == ("doors.open wide", "it is open")
    assert server.refused == []


@STREAMED
async def test_busy_and_broken_servers_are_asked_again(task, stream, waits):
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    server = AnthropicMessages(
        Status(429, {"error": {"type": "rate_limit_error"}}, {"retry-after": "7"}),
        Status(529, overloaded),
        HangUp(),
        Raw(b"<html>bad gateway</html>", "text/html"),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=stream)
    assert (run.reward, len(server.requests), waits[0]) == (1.0, 5, 7.0)
    assert len(agent_steps(run)) == 1


async def test_streams_that_break_off_are_asked_again(task):
    server = AnthropicMessages(
        BreakOff([think("hm", "s1"), say("wall")], 6),
        BreakOff([think("hm", "s2"), say("wall")], 7, torn=True),
        StreamError([say("wall")], 4, {"type": "overloaded_error", "message": "Overloaded"}),
        BreakOff([say("wall")], 7),
        [say("door")],
    )
    async with server:
        run = await play(task, server, stream=True)
    assert (run.reward, len(server.requests)) == (1.0, 5)


@STREAMED
async def test_silence_is_asked_again_after_its_time(task, stream):
    async with AnthropicMessages(Hang(), [say("door")]) as server:
        run = await play(task, server, stream=stream, request_timeout_seconds=0.2)
    assert (run.reward, len(server.requests)) == (1.0, 2)


async def test_a_server_that_stays_overloaded_leaves_the_run_unmeasured(task):
    async with AnthropicMessages(*[Status(529)] * 15) as server:
        run = await play(task, server)
    assert (run.reward, run.failure_kind) == (None, "infrastructure")
    assert "529" in run.error
    assert len(server.requests) == 15  # Five attempts, in each of three rollouts.


async def test_a_wrong_key_ends_the_job(task):
    async with AnthropicMessages() as server:
        with pytest.raises(RefusedError) as refused:
            wrong = {"error": {"type": "authentication_error", "message": "invalid x-api-key"}}
            server.script = [Status(401, wrong)]
            await play(task, server)
    assert refused.value.everywhere


def screens(body):
    """Return for each result of a computer whether it still is a picture."""
    return [
        block["content"][0]["type"] == "image"
        for turn in body["messages"]
        for block in turn["content"]
        if block["type"] == "tool_result"
    ]


TOO_LONG = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "prompt is too long: 9 tokens > 8 maximum",
    },
}


@pytest.mark.parametrize("model", ["claude-sonnet-4-6", "claude-opus-5-5"])
async def test_a_conversation_that_outgrows_the_window_loses_its_oldest_pictures(task, model):
    newest = model == "claude-opus-5-5"
    looks = [
        [
            think("hm", f"s{number}"),
            act("screenshot", f"t{number}")
            if newest
            else call("computer", f"t{number}", action="screenshot"),
        ]
        for number in range(5)
    ]
    server = AnthropicMessages(*looks, Status(400, TOO_LONG), Status(400, TOO_LONG), [say("door")])
    async with server:
        run = await play(task, server, computer(), context_policy="drop_images", model=model)
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    assert [screens(body) for body in server.requests[5:]] == [
        [True] * 5,
        [False] * 2 + [True] * 3,
        [False] * 3 + [True] * 2,
    ]
    assert run.trace.extra["dropped_images"] == 3
    bound = [BINDING in head.get("anthropic-beta", "") for head in server.headers]
    assert bound == [newest] * 8


async def test_or_ends_there_and_is_graded(task):
    server = AnthropicMessages([say("door"), call("picture", "t1")], Status(400, TOO_LONG))
    async with server:
        run = await play(task, server)
    assert (run.reward, run.trace.stop_reason) == (1.0, "length")
    assert "too long" in run.trace.extra["context_overflow"]


@STREAMED
async def test_a_window_that_is_full_in_the_middle_of_a_turn(task, stream):
    full = {"content": [say("do")], "stop_reason": "model_context_window_exceeded"}
    async with AnthropicMessages(full) as server:
        run = await play(task, server, stream=stream, stop_on=[])
    assert (run.trace.stop_reason, run.trace.content) == ("length", "do")
    turns = [[call("picture", "t1"), call("picture", "t2")], full, [say("door")]]
    async with AnthropicMessages(*turns) as server:
        run = await play(task, server, stream=stream, context_policy="drop_images")
    assert (run.reward, server.refused, run.trace.extra["dropped_images"]) == (1.0, [], 1)


async def test_tools_that_come_in_mid_run_do_not_cost_the_thoughts(task):
    server = AnthropicMessages(
        [think("hm", "s1"), call("grow", "t1")],
        [think("ha", "s2"), call("bash", "t2")],
        [say("door")],
    )
    async with server:
        run = await play(task, server, Growing(), model="claude-sonnet-5-5")
    assert (run.reward, server.refused) == (1.0, [])
    assert tool_steps(run)[1].result.text == "done"


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
    machine = Native("computer", width=size[0], height=size[1], environment="linux")
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


async def test_the_gateway_is_asked_where_there_is_no_key(task, monkeypatch):
    async with AnthropicMessages([say("door")], [say("door")]) as server:
        monkeypatch.setenv("HUD_API_URL", server.url)
        monkeypatch.setenv("HUD_API_KEY", KEY)
        by_gateway = await play(task, server, base_url=None, api_key=None)
        monkeypatch.setenv("HUD_API_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        by_key = await play(task, server, base_url=None, api_key=None)
    assert (by_gateway.reward, by_key.reward, server.refused) == (1.0, 1.0, [])
