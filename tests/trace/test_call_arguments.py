"""A call's arguments are read alike by environments, local policies and codecs."""

import json

import pytest

from hud.engine.chat.tool_calls.json_calls import call_of
from hud.environment.tools.tool import parse_arguments
from hud.errors import UsageError
from hud.inference.dialects.chat_completions.answer import read_calls
from hud.trace import parsed_arguments

TWICE = json.dumps('{"a": 1}')
READ = [
    ('{"a": 1}', {"a": 1}),
    (TWICE, {"a": 1}),
    (json.dumps(TWICE), {"a": 1}),
    ("", {}),
    (" \n", {}),
    ("null", {}),
    ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
]


@pytest.mark.parametrize(("text", "arguments"), READ)
def test_arguments_in_any_form_are_one_object_everywhere(text, arguments):
    call = {"name": "look", "arguments": text}
    assert parsed_arguments(text) == arguments
    assert parse_arguments(text, "look") == arguments
    assert call_of(call).arguments == arguments
    assert read_calls({"tool_calls": [{"function": call}]}, None)[0].arguments == arguments


@pytest.mark.parametrize("text", ["[1]", "7", '"a"', '{"a": ', "a=1", json.dumps('{"a": ')])
def test_other_text_stays_text_and_runs_no_tool(text):
    assert parsed_arguments(text) == text
    assert call_of({"name": "look", "arguments": text}) is None
    with pytest.raises(UsageError, match="must be a JSON object"):
        parse_arguments(text, "look")
