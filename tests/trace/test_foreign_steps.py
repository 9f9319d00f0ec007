"""Steps that other clients record are read, shown, and never in the way."""

from __future__ import annotations

import pytest

from hud.trace import AgentStep, ImageContent, Step, ToolStep, parse_step, parse_trace


def user(content):
    return {"source": "user", "step_id": 2, "messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi", "Hi"),
        (None, ""),
        ({"type": "text", "text": "Hi"}, "Hi"),
        ([{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}], "Hi\nyou"),
        ([{"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}], "inside"),
        (["loose", 7], "loose\n7"),
    ],
)
def test_messages_of_one_block_or_of_other_kinds(content, text):
    assert parse_step(user(content)).messages[0].text == text


def test_what_cannot_be_shown_is_named():
    step = parse_step(user([{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]))
    assert step.messages[0].text == "[audio] {'mimeType': 'audio/wav'}"


def test_roles_of_their_own_and_single_messages():
    step = parse_step({"source": "user", "messages": {"role": "developer", "content": "Hi"}})
    assert (step.messages[0].role, step.messages[0].text) == ("user", "Hi")


def test_tool_results_in_every_spelling():
    call = {"id": "1", "name": "look", "arguments": {"x": 1}}
    for result, text, failed in [
        ("plain", "plain", False),
        ({"content": "plain", "isError": True}, "plain", True),
        ({"content": {"type": "text", "text": "one"}, "is_error": None}, "one", False),
        (
            {"content": [{"type": "resource_link", "uri": "x://y"}]},
            "[resource_link] {'uri': 'x://y'}",
            False,
        ),
        ({"content": None, "structuredContent": [1]}, "", False),
    ]:
        step = parse_step({"source": "tool", "call": call, "result": result})
        assert isinstance(step, ToolStep)
        assert (step.result.text, step.result.is_error) == (text, failed)
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    step = parse_step(
        {"source": "tool", "call": call, "result": {"content": [image, {"type": "odd"}]}}
    )
    assert isinstance(step.result.content[0], ImageContent)


@pytest.mark.parametrize(
    "payload",
    [{}, {"source": 7}, {"source": "agent", "tool_calls": "none"}, {"source": "tool", "call": []}],
)
def test_nonsense_is_kept_and_breaks_nothing(payload):
    step = parse_step(payload)
    assert isinstance(step, Step)
    trace = parse_trace({"steps": [payload, {"source": "agent", "content": "x"}]})
    assert isinstance(trace.steps[1], AgentStep)
    assert parse_trace(trace.model_dump(mode="json")).steps[1].content == "x"


@pytest.mark.parametrize("reason", ["tiny", "max_tokens", "", ["done"], 5])
def test_a_stop_reason_of_another_program_spoils_no_trace(reason):
    """Any client may report one: pages, exports and training failed on its run."""
    trace = parse_trace({"trace_id": "a" * 32, "stop_reason": reason, "steps": []})
    assert trace.stop_reason is None
    assert parse_trace({"trace_id": "a" * 32, "stop_reason": "length"}).stop_reason == "length"
