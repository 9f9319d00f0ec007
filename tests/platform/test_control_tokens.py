"""Control tokens stand only where the chat template wrote them, in every path: text that spells one is plain text.

Every special token of every published template is planted in every field of a conversation. Where Hugging Face's
`apply_chat_template` would make control tokens of it, our rule holds; text without them is tested in `test_prompt_ids`.
"""

import functools
import json
import re

import pytest
from tests.engine.published import PUBLISHED, published_folder, published_format, specials
from tests.engine.splitting import stop_of
from tests.platform.test_prompt_ids import DIALECTS, embedded, through_gateway
from tokenizers import Tokenizer

from hud.trace import Continuation, ToolSpec
from hud_platform.training.supervised_rendering import render_conversation

FIELDS = (
    "system",
    "user",
    "assistant",
    "reasoning",
    "result",
    "tool name",
    "tool description",
    "parameter",
    "parameter description",
    "enum",
    "call name",
    "argument",
    "argument value",
)
ASKED = ("system", "user", "result", "tool name", "tool description", "parameter", "enum")
"""Fields of which no template reads the content: there is as much of the template's own, whatever they hold."""


def planted(name):
    """Return every special token of a model, each in a frame by which it is found again."""
    return "".join(f"⟦{token}⟧" for token in specials(name))


def conversation(field, text):
    """Return a conversation with tools that holds `text` in one field."""
    said = {name: text if name == field else name.replace(" ", "_") for name in FIELDS}
    schema = {
        "type": "object",
        "properties": {
            said["parameter"]: {
                "type": "string",
                "description": said["parameter description"],
                "enum": [said["enum"]],
            }
        },
    }
    tools = [
        ToolSpec(name=said["tool name"], description=said["tool description"], parameters=schema)
    ]
    arguments = json.dumps({said["argument"]: said["argument value"], "inner": [{"k": "v"}]})
    call = {
        "id": "abcdefgh1",
        "type": "function",
        "function": {"name": said["call name"], "arguments": arguments},
    }
    messages = [
        {"role": "system", "content": said["system"]},
        {"role": "user", "content": said["user"]},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "content": said["result"]},
        {
            "role": "assistant",
            "content": said["assistant"],
            "reasoning_content": said["reasoning"],
        },
        {"role": "user", "content": "And?"},
    ]
    return messages, tools


@functools.cache
def plain_tokenizer(name):
    """Return a tokenizer to which control tokens are plain text, as the tokenizers library does it by itself."""
    described = json.loads((published_folder(name) / "tokenizer.json").read_text())
    for added in described["added_tokens"]:
        added["special"] = added["content"] in specials(name)
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.encode_special_tokens = True
    return tokenizer


def expected_ids(name, text):
    """Return the ids of rendered text of which the framed tokens were planted and the others are the template's."""
    tokenizer = plain_tokenizer(name)
    pattern = "|".join(map(re.escape, sorted(specials(name), key=len, reverse=True)))
    ids, at = [], 0
    for found in re.finditer(f"⟦(?:{pattern})⟧|({pattern})", text):
        if found[1]:
            ids += tokenizer.encode(text[at : found.start()], add_special_tokens=False).ids
            ids.append(tokenizer.token_to_id(found[1]))
            at = found.end()
    return ids + tokenizer.encode(text[at:], add_special_tokens=False).ids


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_planted_control_tokens_are_plain_text_in_every_path(name, field):
    chat = published_format(name)
    messages, tools = conversation(field, planted(name))
    expected = expected_ids(name, str(chat.render_text(messages, tools)))
    assert embedded(chat, messages, tools) == expected
    for dialect in DIALECTS:
        assert through_gateway(chat, dialect, messages, tools) == expected, dialect


def controls_of(name, ids):
    tokenizer = published_format(name).tokenizer
    known = {tokenizer.token_to_id(token) for token in specials(name)}
    return [token for token in ids if token in known]


@pytest.mark.parametrize("name", PUBLISHED)
def test_planted_control_tokens_are_plain_text_in_a_prompt_that_is_extended(name):
    chat = published_format(name)
    tokens = {}
    for text in ("nothing", planted(name)):
        messages, tools = conversation("result", text)
        prompt = chat.render(messages[:2], tools)
        covered = Continuation([*prompt, stop_of(chat, name, "tools")], 2)
        extended = chat.extend(covered, messages[:4], tools)
        assert extended[: len(prompt)] == prompt
        tokens[text] = controls_of(name, extended)
    assert tokens["nothing"] == tokens[planted(name)]


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3.5", "llama3.1", "smollm2"])
@pytest.mark.parametrize("field", ASKED)
def test_planted_control_tokens_are_plain_text_in_supervised_data(name, field):
    tokens = []
    for text in ("nothing", planted(name)):
        messages, tools = conversation(field, text)
        samples = render_conversation(published_format(name), messages[:-1], tools)
        ids = [sample["prompt_token_ids"] + sample["output_token_ids"] for sample in samples]
        tokens.append([controls_of(name, one) for one in ids])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "llama3.1", "gemma3"])
def test_an_assistants_text_that_spells_its_end_does_not_end_it(name):
    chat = published_format(name)
    end = chat.tokenizer.id_to_token(chat.end_id)
    said = f"done{end}\n and more"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": said}]
    (sample,) = render_conversation(chat, messages, [])
    output = sample["output_token_ids"]
    assert output.count(chat.end_id) == 1
    assert output[-1] == chat.end_id
    assert chat.decode(output).endswith(said)
    # What follows the turn begins behind its own end, not behind the one that was spelled.
    whole = [*sample["prompt_token_ids"], *output]
    extended = chat.extend(
        Continuation(whole, 2), [*messages, {"role": "user", "content": "Next?"}], []
    )
    assert extended[: len(whole)] == whole
    assert "and more" not in chat.decode(extended[len(whole) :])
