"""The tool loop: what the model is given, what is recorded, and why it stops."""

from __future__ import annotations

import asyncio

import pytest
from tests.agents.listed_model import Model, call, play, say

from hud.agents import ScriptedAgent, ToolLoopAgent, create_agent
from hud.agents.chat_messages import opening_messages, spoken_messages, tool_message
from hud.agents.tool_loop import CARRY_ON, DECIDE_ALONE
from hud.agents.types import ClaudeConfig, OpenAIChatConfig
from hud.errors import ContextOverflow, EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.rollouts import rollout
from hud.trace import (
    Completion,
    ImageContent,
    Message,
    Sample,
    TextContent,
    ToolCall,
    ToolResult,
    ToolStep,
    Usage,
)
from hud.trace.recording.recorder import NullRecorder


def sampled(prompt, output):
    return Sample(
        prompt_token_ids=prompt, output_token_ids=output, output_logprobs=[-1.0] * len(output)
    )


async def test_turns_and_tool_answers_alternate_until_the_model_is_done(rooms):
    model = Model(call("look", reasoning="hm"), say("door", usage=Usage(prompt_tokens=5)))
    run = await play(rooms, model, system_prompt="Be brief.")
    assert run.reward == 1.0
    assert run.trace.stop_reason == "done"
    assert [step.source for step in run.trace.steps] == [
        "task",
        "user",
        "agent",
        "tool",
        "agent",
        "task",
    ]
    messages, tools, _, _, trace_id = model.asked[1]
    assert trace_id == run.trace_id
    assert {tool.name for tool in tools} == {"look", "nap", "hang"}
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert messages[2]["reasoning_content"] == "hm"
    assert messages[3] == {"role": "tool", "tool_call_id": "c0", "content": "a door"}
    first, last = (step for step in run.trace.steps if step.source == "agent")
    assert (first.done, last.done) == (False, True)
    assert last.model == "listed"


async def test_a_later_turn_continues_the_exact_ids_of_the_last(rooms):
    model = Model(
        call("look", sample=sampled([1, 2], [3, 4])),
        call("look", "look", sample=sampled([1, 2, 3, 4, 5], [6])),
        say("door", sample=sampled([9, 9], [1]), extended=False),
    )
    run = await play(rooms, model, system_prompt="Be brief.")
    continuations = [asked[3] for asked in model.asked]
    assert continuations[0] is None
    assert continuations[1].token_ids == [1, 2, 3, 4]
    # The system message is not counted: user and assistant are covered, the tool's answer is new.
    assert continuations[1].covered == 2
    assert continuations[2].token_ids == [1, 2, 3, 4, 5, 6]
    assert continuations[2].covered == 4
    assert run.trace.extra["prompt_splits"] == 1
    assert len(run.trace.collect("sample")) == 3


async def test_no_continuation_without_a_sample(rooms):
    model = Model(call("look"), say("door"))
    await play(rooms, model)
    assert model.asked[1][3] is None


async def test_parallel_calls_run_together_and_answer_in_call_order(rooms):
    model = Model(call("nap", "nap", "look", "nap"), say("door"))
    started = asyncio.get_running_loop().time()
    run = await play(rooms, model)
    assert asyncio.get_running_loop().time() - started < 0.25
    messages = model.asked[1][0]
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == ["c0", "c1", "c2", "c3"]
    assert [m["content"] for m in messages if m["role"] == "tool"][2] == "a door"
    # Steps stand in the order in which they ended.
    tools = [step.call.name for step in run.trace.steps if isinstance(step, ToolStep)]
    assert tools == ["look", "nap", "nap", "nap"]


async def test_the_last_allowed_turn_still_has_its_tools_executed(rooms):
    model = Model(call("look"), call("look"), say("door"))
    run = await play(rooms, model, max_steps=2)
    assert run.trace.stop_reason == "max_steps"
    assert len(model.turns) == 1
    assert len([step for step in run.trace.steps if isinstance(step, ToolStep)]) == 2
    assert run.reward == 0.0
    assert run.failure_kind is None


async def test_a_hanging_tool_is_an_error_that_the_model_sees(rooms):
    model = Model(call("hang"), say("door"))
    run = await play(rooms, model, tool_timeout_seconds=0.05)
    assert run.reward == 1.0
    (step,) = (step for step in run.trace.steps if isinstance(step, ToolStep))
    assert step.result.is_error


async def test_an_unknown_tool_is_an_error_that_the_model_sees(rooms):
    model = Model(call("lok"), say("door"))
    run = await play(rooms, model)
    assert run.reward == 1.0
    assert "lok" in model.asked[1][0][-1]["content"]


async def test_an_agent_out_of_time_is_graded_with_what_it_has(rooms):
    model = Model(call("look", content="door"), 30.0)
    run = await play(rooms, model, timeout_seconds=0.1)
    assert run.trace.stop_reason == "timeout"
    assert run.reward == 1.0
    assert run.failure_kind is None


@pytest.mark.parametrize("reason", ["length", "malformed_tool_call"])
async def test_a_broken_turn_stops_the_run_or_is_told_to_the_model(rooms, reason):
    run = await play(rooms, Model(say("do", finish_reason=reason)))
    assert run.trace.stop_reason == reason
    assert run.trace.content == "do"
    model = Model(say("do", finish_reason=reason), say("door"))
    run = await play(rooms, model, stop_on=[])
    assert run.reward == 1.0
    assert model.asked[1][0][-1] == {"role": "user", "content": CARRY_ON[reason]}


async def test_auto_respond_answers_questions(rooms):
    model = Model(say("Shall I?"), say(""), say("door"))
    run = await play(rooms, model, auto_respond=True)
    assert run.reward == 1.0
    assert model.asked[2][0][-1]["content"] == DECIDE_ALONE
    run = await play(rooms, Model(say("Shall I?")))
    assert run.trace.content == "Shall I?"


@pytest.mark.slow
async def test_failures_of_the_model_are_told_apart(rooms):
    run = await play(rooms, Model(UsageError("The prompt is too long.")))
    assert (run.failure_kind, run.reward) == ("agent", 0.0)
    run = await play(rooms, Model(*[InfrastructureFault("The server is gone.")] * 3))
    assert (run.failure_kind, run.reward) == ("infrastructure", None)
    run = await play(rooms, Model(EnvironmentFault("It broke.")))
    assert (run.failure_kind, run.error) == ("environment", "It broke.")


async def test_sampling_parameters_reach_the_model_and_unknown_ones_are_refused(rooms):
    model = Model(say("door"))
    kwargs = {"max_tokens": 5, "stop": "x", "extra_body": {"return_token_ids": True}}
    await play(rooms, model, completion_kwargs=kwargs)
    params = model.asked[0][2]
    assert (params.max_tokens, params.stop, params.temperature) == (5, ("x",), None)
    with pytest.raises(UsageError, match="presence_penalty"):
        create_agent(model, completion_kwargs={"presence_penalty": 1})


def test_unknown_settings_are_errors_that_say_what_there_is():
    with pytest.raises(UsageError, match=r"no setting 'max_step'.*max_steps"):
        create_agent(Model(), max_step=3)
    with pytest.raises(UsageError, match="OpenAIChatAgent"):
        create_agent("m", base_url="http://x")
    with pytest.raises(ValueError, match="extra"):
        ClaudeConfig(model="c", whatever=1)
    assert OpenAIChatConfig(checkpoint_name="m").model == "m"


def test_messages_of_text_and_images():
    image = ImageContent(data="QUJD", mime_type="image/png")
    prompt = [
        Message(role="system", content="s"),
        Message(content=[TextContent(text="see"), image]),
    ]
    messages = opening_messages(prompt, None)
    assert messages[1]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
    ]
    assert spoken_messages(messages) == 1
    structured = ToolResult(structured_content={"a": 1})
    assert tool_message(ToolCall(id="1", name="t"), structured)["content"] == '{"a":1}'


async def test_what_is_left_out_is_no_prefix_any_more(rooms):
    image = ImageContent(data="QUJD", mime_type="image/png")

    @rooms.environment.tool
    async def shoot() -> ToolResult:
        """Take a picture."""
        return ToolResult(content=[image])

    overflow = ContextOverflow("It is too long.")
    model = Model(call("shoot", "shoot", sample=sampled([1], [2])), overflow, say("door"))
    run = await play(rooms, model, context_policy="drop_images")
    assert (run.reward, run.trace.extra["dropped_images"]) == (1.0, 1)
    assert model.asked[1][3].token_ids == [1, 2]
    assert model.asked[2][3] is None
    model = Model(call("shoot"), overflow)
    run = await play(rooms, model, context_policy="drop_images")
    assert (run.trace.stop_reason, run.failure_kind) == ("length", None)
    assert run.trace.extra["context_overflow"] == "It is too long."


async def test_a_scripted_policy_plays_through_the_same_loop(rooms):
    def policy(messages, tools, trace):
        assert tools
        if messages[-1]["role"] == "user":
            return Completion(tool_calls=[ToolCall(id="1", name="look")])
        assert trace.tool_calls[-1].name == "look"
        return "door" if messages[-1]["content"] == "a door" else "wall"

    agent = ScriptedAgent(policy, max_steps=3)
    run = await rollout(
        rooms, agent, runtime=lambda t: t.environment.run(), recorder=NullRecorder()
    )
    assert run.reward == 1.0
    assert run.model == "policy"
    assert run.trace.steps[2].finish_reason == "tool_calls"


async def test_a_script_of_the_whole_run_may_return_the_answer(rooms):
    async def script(run):
        result = await run.call_tool(ToolCall(id="1", name="look"))
        return result.text.split()[-1]

    run = await rollout(
        rooms,
        ScriptedAgent(script),
        runtime=lambda task: task.environment.run(),
        recorder=NullRecorder(),
    )
    assert run.reward == 1.0
    with pytest.raises(UsageError, match="takes 2 arguments"):
        ScriptedAgent(lambda a, b: None)
    with pytest.raises(UsageError, match="max_steps"):
        ScriptedAgent(lambda run: None, max_steps=3)


async def test_an_agent_of_ones_own_is_one_method(rooms):
    model = Model(say("door"))
    agent = ToolLoopAgent(model)
    assert agent.model_name == "listed"
    run = await rollout(
        rooms, agent, runtime=lambda t: t.environment.run(), recorder=NullRecorder()
    )
    assert run.reward == 1.0


async def test_a_task_may_ask_for_settings_of_the_agent(rooms):
    rooms.agent_config = {"max_steps": 1, "system_prompt": "Hurry."}
    model = Model(call("look"), say("door"))
    run = await play(rooms, model)
    assert run.trace.stop_reason == "max_steps"
    assert model.asked[0][0][0] == {"role": "system", "content": "Hurry."}
    rooms.agent_config = {"max_stepz": 1}
    run = await play(rooms, Model(say("door")))
    assert (run.failure_kind, "max_stepz" in run.error) == ("agent", True)
