"""A line of trajectories.jsonl holds everything that the agent did, as a conversation that a chat template renders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from orjson import loads

from hud.trace import AgentStep, Step, ToolCall, ToolResult, ToolStep, Trace
from hud.trace.content import ImageContent, Message
from hud.trace.trajectory_export import SCHEMA, pictures_of, trajectory_line

VALIDATOR = Draft202012Validator(loads(SCHEMA.read_bytes()))
PROMPT = Step(source="user", messages=[Message(role="user", content="What is it?")])
LOOK = ToolCall(id="1", name="look", arguments={"at": 3})


def line_of(*steps, content=None, **run):
    trace = Trace(trace_id="a" * 32)
    for step in steps:
        trace.record(step)
    row = {
        "trace_id": "a" * 32,
        "job_id": None,
        "group_id": None,
        "attempt": 0,
        "source": None,
        "checkpoint": None,
        "started_at": None,
        "ended_at": None,
        "extra": None,
        "turns": 0,
        "cost_usd": None,
        "task": {"env": "rooms", "id": "escape", "args": {}},
        "slug": "escape",
        "model": "m",
        "status": "completed",
        "reward": 1.0,
        "failure_kind": None,
        "error": None,
        "stop_reason": "done",
        "content": content,
        "grade": None,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cached_tokens": 0,
        **run,
    }
    line = loads(trajectory_line(row, trace.model_dump(mode="json"), None))
    VALIDATOR.validate(line)
    assert [*line["messages"][: -len(line["completion"]) or None], *line["completion"]] == line[
        "messages"
    ]
    return line


def roles(line):
    return [message["role"] for message in line["completion"]]


result = ToolResult.of_text


def test_calls_and_results_are_in_the_completion_and_the_last_text_is_the_answer():
    line = line_of(
        PROMPT,
        AgentStep(content="I look.", tool_calls=[LOOK]),
        ToolStep(call=LOOK, result=result("a door")),
        AgentStep(content="A door."),
        content="A door.",
    )
    assert roles(line) == ["assistant", "tool", "assistant"]
    assert line["completion"][0]["tool_calls"][0]["function"] == {
        "name": "look",
        "arguments": '{"at":3}',
    }
    assert line["completion"][1] == {"role": "tool", "content": "a door", "tool_call_id": "1"}
    assert line["answer"] == "A door."
    assert line["prompt"] == "What is it?"


def test_a_script_that_records_no_turns_has_its_calls_and_its_answer_all_the_same():
    line = line_of(PROMPT, ToolStep(call=LOOK, result=result("a door")), content="A door.")
    assert roles(line) == ["assistant", "tool", "assistant"]
    assert line["completion"][0]["tool_calls"][0]["id"] == "1"
    assert line["completion"][2]["content"] == "A door."


def test_an_answer_that_was_said_before_is_still_the_last_message():
    turns = [AgentStep(content="3"), AgentStep(content="4")]
    assert [m["content"] for m in line_of(PROMPT, *turns, content="3")["completion"]] == list("343")


@pytest.mark.parametrize("content", [None, ""])
def test_a_run_that_failed_before_its_first_turn_has_an_empty_completion(content):
    line = line_of(PROMPT, content=content, status="error", reward=None, failure_kind="agent")
    assert line["completion"] == []
    assert line["answer"] == content


def test_a_run_that_ended_in_a_tool_call_keeps_it():
    line = line_of(
        PROMPT,
        AgentStep(content=None, tool_calls=[LOOK]),
        ToolStep(call=LOOK, result=result("a door")),
        content=None,
    )
    assert roles(line) == ["assistant", "tool"]
    assert line["answer"] is None


def test_a_user_who_speaks_between_turns_is_part_of_the_completion():
    line = line_of(
        PROMPT,
        AgentStep(content="Shall I?"),
        Step(source="user", messages=[Message(role="user", content="Decide.")]),
        AgentStep(content="Yes."),
        content="Yes.",
    )
    assert roles(line) == ["assistant", "user", "assistant"]
    assert line["prompt"] == "What is it?"


@given(
    st.lists(st.tuples(st.text(max_size=5), st.integers(0, 3), st.booleans()), max_size=5),
    st.one_of(st.none(), st.text(max_size=5)),
)
def test_every_tool_message_answers_a_call_of_the_message_before_it(turns, content):
    steps = [PROMPT]
    for number, (text, calls, recorded) in enumerate(turns):
        made = [ToolCall(id=f"{number}-{n}", name="look", arguments={}) for n in range(calls)]
        if recorded:
            steps.append(AgentStep(content=text, tool_calls=made))
        steps += [ToolStep(call=call, result=result("x")) for call in made]
    announced = set()
    for message in line_of(*steps, content=content)["completion"]:
        if message["role"] == "assistant":
            announced = {call["id"] for call in message.get("tool_calls", [])}
        if message["role"] == "tool":
            assert message["tool_call_id"] in announced


def test_states_stand_with_the_steps_after_which_they_were():
    line = line_of(
        Step(source="task", extra={"state": {"left": 3}}),
        PROMPT,
        AgentStep(tool_calls=[LOOK]),
        ToolStep(call=LOOK, result=result("a lamp"), extra={"state": {"left": 2}}),
    )
    assert line["states"] == [
        {"step_id": 1, "source": "task", "state": {"left": 3}},
        {"step_id": 4, "source": "tool", "state": {"left": 2}},
    ]


def test_pictures_of_prompts_results_and_screens_are_named_by_their_steps():
    trace = Trace(trace_id="../../etc/" + "a" * 32)
    image = ImageContent(data="aGVsbG8=", mime_type="image/png")
    trace.record(Step(source="user", messages=[Message(content=[image])]))
    screen = {"screenshot": {"type": "image", "data": "d29ybGQ=", "mimeType": "image/jpeg"}}
    broken = ImageContent(data="not base64!", mime_type="image/png")
    trace.record(ToolStep(call=LOOK, result=ToolResult(content=[image, broken]), extra=screen))
    found = pictures_of(trace.model_dump(mode="json", by_alias=True))
    assert [(one.step_id, one.path, one.data) for one in found] == [
        (1, "a" * 32 + "/1-1.png", b"hello"),
        (2, "a" * 32 + "/2-1.png", b"hello"),
        (2, "a" * 32 + "/2-3.jpg", b"world"),
    ]
