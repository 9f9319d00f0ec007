"""The rule by which a model's own system prompt and a caller's are combined."""

import pytest

from hud.trace import with_system_prompt

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize("prompt", [None, ""])
def test_without_a_prompt_a_conversation_is_what_it_was(prompt):
    messages = [{"role": "system", "content": "Be brief."}, USER]
    assert with_system_prompt(messages, prompt) is messages


def test_a_prompt_precedes_the_callers_own_with_an_empty_line_between():
    own = {"role": "system", "content": "Be brief.", "name": "boss"}
    first, second = with_system_prompt([own, USER], "Answer in French.")
    assert first == {**own, "content": "Answer in French.\n\nBe brief."}
    assert second is USER
    assert own["content"] == "Be brief.", "the caller's message is left as it is"


def test_a_prompt_precedes_the_parts_of_a_caller():
    parts = [{"type": "text", "text": "Be brief."}]
    (first, _) = with_system_prompt([{"role": "system", "content": parts}, USER], "In French.")
    assert first["content"] == [{"type": "text", "text": "In French.\n\n"}, *parts]


@pytest.mark.parametrize("content", ["", None])
def test_an_empty_system_message_of_the_caller_is_replaced(content):
    first, _ = with_system_prompt([{"role": "system", "content": content}, USER], "In French.")
    assert first["content"] == "In French."


def test_a_conversation_without_a_leading_system_message_gets_one():
    later = {"role": "system", "content": "Now be long."}
    assert with_system_prompt([USER, later], "In French.") == [
        {"role": "system", "content": "In French."},
        USER,
        later,
    ]
    assert with_system_prompt([], "In French.") == [{"role": "system", "content": "In French."}]
