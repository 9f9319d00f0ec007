"""Whatever a model writes is taken apart, never refused with an exception."""

from hypothesis import given
from hypothesis import strategies as st

from hud.engine.toolcalls import parse_output

PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    '{"name": "look"',
    ', "arguments": {}}',
    "]",
    "text ",
]


def test_hermes_calls_and_the_text_before_them():
    parsed = parse_output(
        'Looking.\n<tool_call>{"name": "look", "arguments": {"at": 3}}</tool_call>'
    )
    assert parsed.content == "Looking."
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("look", {"at": 3})]
    assert not parsed.malformed


def test_several_calls_get_ids_of_their_own():
    block = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    calls = parse_output(block * 2).tool_calls
    assert len({call.id for call in calls}) == 2


def test_a_turn_that_is_plain_json_is_a_call_only_for_a_known_tool():
    text = '{"name": "look", "arguments": {"at": 3}}'
    assert parse_output(text, ["look"]).tool_calls[0].arguments == {"at": 3}
    assert parse_output(text, ["other"]).content == text


def test_reasoning_is_kept_apart():
    parsed = parse_output("<think>hm, 3</think>\nThe answer is 3.")
    assert (parsed.reasoning, parsed.content) == ("hm, 3", "The answer is 3.")


def test_a_call_that_cannot_be_read_is_malformed():
    for block in ("{broken", "[1, 2]", '{"arguments": {}}', '{"name": "a", "arguments": [1]}', ""):
        assert parse_output(f"<tool_call>{block}</tool_call>").malformed


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_nothing_raises(text):
    parsed = parse_output(text, ["look"])
    assert all(isinstance(call.arguments, dict) for call in parsed.tool_calls)
