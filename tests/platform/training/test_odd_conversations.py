"""Conversations that no chat template could read are refused with their place, and not by the engine's failure."""

import pytest
from pydantic import ValidationError

from hud.learning.training_calls import RenderRequest

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({}, "has no role"),
        ({"role": 5, "content": "x"}, "has no role"),
        ({"role": "user", "content": 5}, "neither text nor a list"),
        ({"role": "user", "content": [5]}, "without a type"),
        ({"role": "user", "content": [{"type": "text"}]}, "without its text"),
        ({"role": "assistant", "tool_calls": "x"}, "without a function's name"),
        ({"role": "assistant", "tool_calls": [5]}, "without a function's name"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "without a function's name"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}, "without a function's"),
    ],
)
def test_a_message_of_no_form_is_refused_with_its_place(message, problem):
    with pytest.raises(ValidationError, match=f"message 1 .*{problem}"):
        RenderRequest.model_validate({"conversations": [{"messages": [USER, message]}]})


def test_calls_thoughts_and_pictures_pass():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, picture]},
        {"role": "assistant", "content": None, "reasoning": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "assistant", "content": "3", "tool_calls": None},
    ]
    request = RenderRequest.model_validate({"conversations": [{"messages": messages}]})
    assert request.conversations[0].messages == messages
