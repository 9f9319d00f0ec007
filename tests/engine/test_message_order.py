"""Every message's text is in the prompt, whatever order of messages a template refuses or drops; later prompts extend earlier ones."""

import itertools

import pytest
from tests.engine import published, template_folders
from tests.engine.test_chat_templates import PLAIN, chat_of, folder_of

from hud.trace import Continuation, ToolSpec

LOOK = ToolSpec(name="look", description="", parameters={"type": "object", "properties": {}})
ROLES = ("system", "developer", "user", "assistant", "tool")
TEMPLATES = sorted({*template_folders.PUBLISHED, *published.PUBLISHED})


def chat_named(name):
    if name in template_folders.PUBLISHED:
        return template_folders.template_chat(name)
    return published.published_format(name)


def called(place):
    function = {"name": "look", "arguments": "{}"}
    call = {"id": f"abcdefgh{place}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def talk_of(roles):
    """Return messages of these roles with a text each; a tool's result follows its call."""
    messages = []
    for place, role in enumerate(roles):
        message = {"role": role, "content": f"text{place}."}
        if role == "tool":
            messages.append(called(place))
            message["tool_call_id"] = f"abcdefgh{place}"
        messages.append(message)
    return messages


def missing_texts(chat, messages, tools):
    prompt = chat.render_text(messages, tools)
    return [message["content"] for message in messages if message["content"] not in prompt]


@pytest.mark.parametrize("tools", [[], [LOOK]], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_message_is_in_the_prompt_in_any_order(name, tools):
    chat = chat_named(name)
    orders = [roles for length in (1, 2, 3) for roles in itertools.product(ROLES, repeat=length)]
    for roles in orders:
        # A conversation that ends with the assistant is no prompt; Mistral's templates drop the text of a turn with calls.
        if roles[-1] != "assistant" and ("assistant", "tool") not in itertools.pairwise(roles):
            assert missing_texts(chat, talk_of(roles), tools) == [], roles


CODING = [
    {"role": "system", "content": "You write code."},
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Mend the test."},
    {"role": "system", "content": "The folder is /work."},
    {"role": "user", "content": "It is test_sum.py."},
]
"""A conversation as coding agents begin it."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_tool_turns_extend_although_system_messages_are_not_first(name):
    chat, messages = chat_named(name), list(CODING)
    end = chat.tokenizer.token_to_id("<|observation|>") if name.startswith("glm") else chat.end_id
    ids = [*chat.render(messages, [LOOK]), *chat.encode("calls oddly"), end]
    for place in range(3):
        result = {"role": "tool", "tool_call_id": f"abcdefgh{place}", "content": f"result{place}."}
        reminder = {"role": "system", "content": f"reminder{place}."}
        messages += [called(place), result, reminder]
        covered = sum(message["role"] != "system" for message in messages) - 1
        extended = chat.extend(Continuation(ids, covered), messages, [LOOK])
        assert extended is not None
        assert extended[: len(ids)] == ids
        added = chat.decode(extended[len(ids) :])
        assert added.index(f"result{place}.") < added.index(f"reminder{place}.")
        ids = [*extended, *chat.encode("calls oddly"), end]


def test_a_system_message_after_the_covered_turn_is_added_and_not_covered():
    chat = chat_named("qwen2.5")
    messages = [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "3"},
        {"role": "system", "content": "Answer in words."},
    ]
    extended = chat.extend(Continuation([5, 6, chat.end_id], 2), messages, [])
    assert chat.decode(extended[3:]) == (
        "\n<|im_start|>system\nAnswer in words.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_later_system_message_is_a_marked_part_of_its_neighbour():
    chat = chat_named("qwen3.5")
    assert "<|im_start|>system\nYou write code.\n\nBe brief.<|im_end|>" in chat.render_text(
        CODING, []
    )
    assert (
        "<|im_start|>user\nMend the test.\n\n<system>\nThe folder is /work.\n</system><|im_end|>"
        in (chat.render_text(CODING, []))
    )


def test_a_template_that_renders_every_order_is_given_the_conversation_unchanged():
    prompt = chat_named("qwen2.5").render_text(CODING, [])
    assert prompt.count("<|im_start|>system") == 3
    assert "<system>" not in prompt


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}",
    ],
    ids=["refuses", "drops"],
)
def test_a_template_without_system_messages_has_them_in_the_first_users(tmp_path, template):
    chat = chat_of(folder_of(tmp_path / "m", {}, {"chat_template.jinja": template + "<|end|>"}))
    prompt = chat.render_text(CODING, [])
    assert prompt.startswith(
        "You write code.\n\nBe brief.\n\nMend the test.\n\n<system>\nThe folder"
    )


def test_a_template_of_conversations_with_tools_alone_renders_one_without(tmp_path):
    listed = "{% for t in tools %}{{ t.function.name }}{% endfor %}"
    refuses = "{% if tools is none %}{{ raise_exception('tools') }}{% endif %}"
    files = {"chat_template.jinja": refuses + listed + PLAIN}
    chat = chat_of(folder_of(tmp_path / "m", {}, files))
    assert chat.render_text([{"role": "user", "content": "hi"}], []) == "hi<|end|>"
