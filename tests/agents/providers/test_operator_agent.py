"""OpenAI's computer tool, of today and of the preview: actions there and back, screens, safety checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agents.servers.loopback import PNG, closing_agent
from tests.agents.servers.openai_responses import (
    KEY,
    OpenAIResponses,
    call,
    say,
    think,
    use,
    use_preview,
)

from hud.agents import Agent, OpenAIAgent, OperatorAgent
from hud.environment import Environment
from hud.eval.rollouts import rollout
from hud.trace import ImageContent, TextContent, ToolResult, ToolSpec
from hud.trace.recording.recorder import NullRecorder
from hud_integrations.openai.computer import arguments_of

PICTURE = f"data:image/png;base64,{PNG}"
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Computer:
    """A computer that remembers what it was told, and shows a picture after each action."""

    def __init__(self, environment="browser", broken=(), words=()):
        options = {"width": 800, "height": 600, "environment": environment}
        self.spec = ToolSpec(name="computer", native="computer", options=options)
        self.broken = broken
        self.words = list(words)
        self.did = []

    async def call(self, arguments, timeout=None):
        self.did.append(arguments)
        if arguments["action"] in self.broken:
            return ToolResult(content=[TextContent(text="there is no such place")], is_error=True)
        words = [TextContent(text=self.words.pop(0))] if self.words else []
        return ToolResult(content=[*words, ImageContent(data=PNG, mime_type="image/png")])


class AtComputer(Agent):
    """An agent that has a computer beside the environment's tools."""

    def __init__(self, agent, computer):
        self.agent, self.computer = agent, computer

    async def __call__(self, run):
        run.attach(self.computer)
        await self.agent(run)


@pytest.fixture
def task(monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    env = Environment("shop")

    @env.tool
    async def note(text: str) -> str:
        """Write something down."""
        return f"noted {text}"

    @env.template()
    async def buy(prompt: str = "Buy a lamp."):
        """Buy something."""
        answer = yield prompt
        yield float(answer == "bought")

    return buy()


async def play(task, server, computer, agent_type=OperatorAgent, **config):
    config = {"base_url": f"{server.url}/v1", "api_key": KEY, **config}
    async with closing_agent(agent_type(**config)) as agent:
        return await rollout(
            task,
            AtComputer(agent, computer),
            runtime=lambda task: task.environment.run(),
            recorder=NullRecorder(),
        )


@STREAMED
async def test_a_batch_of_actions_is_carried_out_in_order_and_answered_by_one_screen(task, stream):
    computer = Computer()
    server = OpenAIResponses(
        [think("look"), use("u1", {"type": "screenshot"})],
        [
            think("buy"),
            use(
                "u2",
                {"type": "click", "button": "left", "x": 10, "y": 20, "keys": ["CTRL"]},
                {"type": "double_click", "x": 1, "y": 2, "keys": None},
                {"type": "type", "text": "lamp"},
                {"type": "keypress", "keys": ["CTRL", "ENTER"]},
                {"type": "scroll", "x": 5, "y": 6, "scroll_x": 0, "scroll_y": -100},
                {"type": "drag", "path": [{"x": 1, "y": 1}, {"x": 9, "y": 9}]},
                {"type": "move", "x": 3, "y": 4},
                {"type": "click", "button": "wheel", "x": 0, "y": 0},
                {"type": "wait"},
            ),
            call("note", "c1", {"text": "lamp"}),
        ],
        [say("bought")],
    )
    async with server:
        run = await play(task, server, computer, stream=stream)
    assert (run.reward, run.error, server.refused) == (1.0, None, [])
    assert server.requests[0]["tools"][0] == {"type": "computer"}
    assert computer.did == [
        {"action": "screenshot"},
        {"action": "click", "x": 10, "y": 20, "button": "left", "keys": ["ctrl"]},
        {"action": "click", "x": 1, "y": 2, "button": "left", "count": 2},
        {"action": "type", "text": "lamp"},
        {"action": "key", "keys": ["ctrl", "enter"]},
        {"action": "scroll", "x": 5, "y": 6, "scroll_x": 0, "scroll_y": -100},
        {"action": "drag", "path": [[1, 1], [9, 9]]},
        {"action": "move", "x": 3, "y": 4},
        {"action": "click", "x": 0, "y": 0, "button": "middle"},
        {"action": "wait", "seconds": 1.0},
    ]
    screens = [
        item for item in server.requests[2]["input"] if item["type"] == "computer_call_output"
    ]
    assert [screen["call_id"] for screen in screens] == ["u1", "u2"]
    assert {screen["output"]["image_url"] for screen in screens} == {PICTURE}


async def test_a_browser_is_sent_to_addresses_by_a_function_beside_the_tool(task):
    computer = Computer()
    where = {"action": "navigate", "url": "https://shop.example"}
    async with OpenAIResponses([call("navigate_browser", "c1", where)], [say("bought")]) as server:
        run = await play(task, server, computer)
    assert (run.reward, server.refused, computer.did) == (1.0, [], [where])
    (output,) = [i for i in server.requests[1]["input"] if i["type"] == "function_call_output"]
    assert output["output"][0]["image_url"] == PICTURE


async def test_a_desktop_has_no_such_function(task):
    async with OpenAIResponses([say("bought")]) as server:
        await play(task, server, Computer("linux"))
    names = [tool.get("name") for tool in server.requests[0]["tools"]]
    assert names == [None, "note"]


@STREAMED
async def test_the_preview_is_declared_with_its_screen_and_does_one_action_at_a_time(task, stream):
    computer = Computer("linux")
    server = OpenAIResponses(
        [think("look"), use_preview("u1", {"type": "screenshot"})],
        [use_preview("u2", {"type": "click", "button": "right", "x": 1, "y": 2})],
        [say("bought")],
    )
    async with server:
        run = await play(task, server, computer, model="computer-use-preview", stream=stream)
    assert (run.reward, server.refused) == (1.0, [])
    assert server.requests[0]["tools"][0] == {
        "type": "computer_use_preview",
        "display_width": 800,
        "display_height": 600,
        "environment": "linux",
    }
    assert computer.did[1] == {"action": "click", "x": 1, "y": 2, "button": "right"}


CHECKS = (
    {"id": "cu_sc_1", "code": "malicious_instructions", "message": "The page gives orders."},
    {"id": "cu_sc_2", "code": None, "message": None},
)


async def test_safety_checks_are_acknowledged_and_said_so_in_the_trace(task):
    computer = Computer()
    server = OpenAIResponses(
        [use("u1", {"type": "screenshot"}, checks=CHECKS)],
        [say("bought")],
    )
    async with server:
        run = await play(task, server, computer)
    assert (run.reward, server.refused, len(computer.did)) == (1.0, [], 1)
    step = next(step for step in run.trace.steps if step.source == "agent")
    assert [check["code"] for check in step.extra["safety_checks"] if "code" in check] == [
        "malicious_instructions"
    ]
    assert all(check["acknowledged"] for check in step.extra["safety_checks"])


async def test_safety_checks_can_end_the_run_before_the_action(task):
    computer = Computer()
    turn = [say("bought"), use("u1", {"type": "screenshot"}, checks=CHECKS)]
    async with OpenAIResponses(turn) as server:
        run = await play(task, server, computer, safety_checks="stop")
    assert (run.trace.stop_reason, computer.did) == ("done", [])
    step = next(step for step in run.trace.steps if step.source == "agent")
    assert (step.finish_reason, step.tool_calls) == ("safety_check", [])
    assert "The page gives orders." in step.refusal
    assert not any(check["acknowledged"] for check in step.extra["safety_checks"])


async def test_what_the_computer_refused_is_told_in_words_after_the_screen(task):
    computer = Computer(broken=("click",))
    click = {"type": "click", "button": "left", "x": 9999, "y": 1}
    async with OpenAIResponses([use("u1", click)], [say("bought")]) as server:
        run = await play(task, server, computer)
    assert (run.reward, server.refused) == (1.0, [])
    screen, words = server.requests[1]["input"][-2:]
    assert screen["type"] == "computer_call_output"
    assert "there is no such place" in words["content"][0]["text"]


async def test_what_a_screen_does_not_show_is_told_when_it_changes(task):
    computer = Computer(words=["At /a", "At /a", "At /b\nA dialog said: Sure?", "At /b", "At /b"])
    look = {"type": "screenshot"}
    turns = [[use("u1", look)], [use("u2", look)], [use("u3", look, look)], [use("u4", look)]]
    async with OpenAIResponses(*turns, [say("bought")]) as server:
        run = await play(task, server, computer)
    assert (run.reward, server.refused) == (1.0, [])
    told = [
        item["content"][0]["text"]
        for item in server.requests[-1]["input"][1:]
        if item["type"] == "message"
    ]
    assert told == ["Beside the screen: At /a", "Beside the screen: At /b\nA dialog said: Sure?"]


async def test_models_that_know_no_computer_have_it_as_a_function(task):
    computer = Computer()
    async with OpenAIResponses(
        [call("computer", "c1", {"action": "screenshot"})], [say("bought")]
    ) as server:
        run = await play(task, server, computer, OpenAIAgent, model="gpt-5.1")
    assert (run.reward, computer.did) == (1.0, [{"action": "screenshot"}])
    assert [tool["type"] for tool in server.requests[0]["tools"]] == ["function", "function"]


async def test_an_operator_acts_alone_unless_it_is_told_otherwise(task):
    async with OpenAIResponses([say("bought")], [say("bought")]) as server:
        await play(task, server, Computer())
        await play(task, server, Computer(), system_prompt="Ask first.")
    first, second = server.requests
    assert "Nobody is there" in first["instructions"]
    assert second["instructions"] == "Ask first."


_NUMBER = st.integers(-10_000, 10_000)
_KEYS = st.lists(st.sampled_from(["CTRL", "a", "A", "+", "ArrowUp", "ESC", " "]), max_size=3)
_ACTIONS = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["click", "double_click", "move"]),
            "x": _NUMBER,
            "y": _NUMBER,
            "keys": st.none() | _KEYS,
        }
    ),
    st.fixed_dictionaries({"type": st.just("keypress"), "keys": _KEYS}),
    st.fixed_dictionaries({"type": st.just("type"), "text": st.text()}),
    st.fixed_dictionaries(
        {
            "type": st.just("drag"),
            "path": st.lists(st.fixed_dictionaries({"x": _NUMBER, "y": _NUMBER})),
        }
    ),
)


@pytest.mark.slow
@given(_ACTIONS)
def test_every_action_keeps_its_places_texts_and_number_of_keys(action):
    found = arguments_of(action)
    for name in ("x", "y", "text"):
        assert found.get(name) == action.get(name)
    assert len(found.get("keys") or []) == len(action.get("keys") or [])
    assert [[p["x"], p["y"]] for p in action.get("path", [])] == found.get("path", [])
    assert found["action"] in {"click", "move", "key", "type", "drag"}
