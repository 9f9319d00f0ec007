"""Trajectories split only where a template tells the conversation differently than before."""

from pathlib import Path

import pytest
from tests.engine.published import PUBLISHED, no_weights, published_format
from tests.engine.splitting import LOOK, samples, table, turn

from hud.engine.chat.chat_format import ChatFormat
from hud.trace import Continuation

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]


def after(chat, messages, covered=2):
    """Return the continuation of a turn that answered the first messages, ended as the model ends it."""
    spoken = chat.encode("sampled, and spelled oddly")
    ids = [*chat.render(messages[:covered], [LOOK]), *spoken, chat.end_id]
    return Continuation(ids, covered)


def added(chat, messages):
    """Return the text by which the prompt of a conversation of two turns extends the first one's ids."""
    before = after(chat, messages)
    extended = chat.extend(before, messages, [LOOK])
    assert extended[: len(before.token_ids)] == before.token_ids
    return chat.decode(extended[len(before.token_ids) :])


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("kind", ["tools", "tools, thinking"])
def test_a_run_of_tool_turns_is_one_sample_under_every_template(name, kind):
    assert len(samples(name, kind)) == 1


@pytest.mark.slow
def test_the_documentations_table_is_what_the_templates_do():
    docs = Path(__file__).parents[2] / "docs" / "chat-formats.md"
    assert table() in docs.read_text(encoding="utf-8")


def test_an_empty_block_of_reasoning_stays_and_only_what_follows_is_added():
    chat = published_format("qwen3")
    messages = [*ASK, *turn(0, "tools")]
    messages[-1]["content"] = "3"
    assert added(chat, messages) == (
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_reasoning_that_the_template_leaves_out_splits():
    chat = published_format("qwen3")
    messages = [*ASK, *turn(0, "users, thinking")]
    assert chat.extend(after(chat, messages), messages, [LOOK]) is None
    del messages[2]["reasoning_content"]
    assert chat.extend(after(chat, messages), messages, [LOOK]) is not None


def test_a_turn_that_was_cut_is_ended_as_the_template_ends_it():
    for name, end in {"gemma3": "<end_of_turn>", "qwen3": "<|im_end|>"}.items():
        chat = published_format(name)
        messages = [*ASK, *turn(0, "users")]
        cut = Continuation(after(chat, messages).token_ids[:-1], 2)
        extended = chat.extend(cut, messages, [])
        assert extended[: len(cut.token_ids)] == cut.token_ids
        assert chat.tokenizer.id_to_token(extended[len(cut.token_ids)]) == end


def test_a_token_that_ends_a_turn_and_begins_the_next_message_stands_once():
    chat = published_format("glm-4.6")
    user, observation = (
        chat.tokenizer.token_to_id(f"<|{who}|>") for who in ("user", "observation")
    )
    prompt = chat.render(ASK, [LOOK])
    called, answer = turn(0, "tools")
    ended = Continuation([*prompt, 5, observation], 2)
    extended = chat.extend(ended, [*ASK, called, answer], [LOOK])
    assert extended[: len(prompt) + 2] == ended.token_ids
    assert extended.count(observation) == chat.render([*ASK, called, answer], [LOOK]).count(
        observation
    )
    # It ended as if the user came next, and a tool's result came.
    ended = Continuation([*prompt, 5, user], 2)
    assert chat.extend(ended, [*ASK, called, answer], [LOOK]) is None
    cut = Continuation([*prompt, 5], 2)
    assert chat.extend(cut, [*ASK, called, answer], [LOOK])[len(prompt) + 1] == observation


TEMPLATES = {
    "[{{ m.content }}]": True,
    "{{ '(then) ' if loop.last }}{{ m.content }}": True,
    "{{ m.content if loop.last else m.content | upper }}": False,
    "{{ m.content if m.role != 'assistant' or loop.last else '(gone)' }}": False,
    "{{ loop.revindex }}{{ m.content }}": False,
}


@pytest.mark.parametrize("written", TEMPLATES)
def test_the_templates_own_text_may_change_and_the_conversations_may_not(tmp_path, written):
    chat = with_template(tmp_path, f"{{% for m in messages %}}{written}<|im_end|>{{% endfor %}}$")
    messages = [*ASK, *turn(0, "users")]
    extended = chat.extend(after(chat, messages), messages, [])
    assert (extended is not None) == TEMPLATES[written]


def with_template(folder: Path, template: str) -> ChatFormat:
    source = published_format("qwen3").folder
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text(template)
    return ChatFormat(folder, no_weights())
