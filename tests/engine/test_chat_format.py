"""A folder's own tokenizer and template, and prompts that extend their own ids."""

import json
import shutil

import pytest
import torch
from tests.engine.tiny_policy import TOOLS, tiny_folder
from transformers import AutoTokenizer

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import PolicyChatModel
from hud.engine.sample.request import SampledTurn
from hud.engine.tiny_model import create_tiny
from hud.errors import UsageError
from hud.trace import Continuation, SamplingParams

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which item?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3 apples", "tool_call_id": "1"},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "Sure?"},
]


@pytest.fixture
def chat():
    return ChatFormat(tiny_folder(), DecoderConfig.from_folder(tiny_folder()))


def test_rendering_is_that_of_transformers(chat):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder())
    messages = [
        {
            **message,
            "content": message["content"] or "",
            "tool_calls": [{**CALL, "function": {"name": "look", "arguments": {"at": 3}}}],
        }
        if message.get("tool_calls")
        else message
        for message in TALK
    ]
    schemas = [{"type": "function", "function": tool.model_dump()} for tool in TOOLS]
    theirs = tokenizer.apply_chat_template(
        messages, tools=schemas, add_generation_prompt=True, tokenize=False
    )
    assert chat.render_text(TALK, TOOLS) == theirs
    assert chat.render(TALK, TOOLS) == tokenizer.encode(theirs, add_special_tokens=False)


@pytest.mark.parametrize("covered", [2, 4])
def test_a_later_prompt_begins_with_the_earlier_ids_unchanged(chat, covered):
    so_far = [5, 6, 7, *chat.encode("sampled, and spelled oddly"), chat.end_id]
    # The system message is not counted.
    extended = chat.extend(Continuation(so_far, covered), TALK, TOOLS)
    assert extended[: len(so_far)] == so_far
    rest = chat.decode(extended[len(so_far) :])
    assert rest.endswith("<|assistant|>")
    assert ("3 apples" in rest) == (covered == 2)


def test_a_turn_cut_at_its_length_is_closed_by_hand(chat):
    so_far = chat.encode("cut")
    extended = chat.extend(Continuation(so_far, 4), TALK, TOOLS)
    assert extended[: len(so_far) + 1] == [*so_far, chat.end_id]


def test_a_template_that_rewrites_earlier_turns_cannot_extend(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_folder() / name).read_bytes())
    # Like the templates that strip the thinking of every turn but the last.
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'assistant' and not loop.last %}(gone)"
        "{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    )
    chat = ChatFormat(tmp_path, DecoderConfig.from_folder(tiny_folder()))
    assert chat.extend(Continuation([1, chat.end_id], 4), TALK, TOOLS) is None


def test_images_are_refused_in_a_sentence(chat):
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    with pytest.raises(UsageError, match="reads text only"):
        chat.render([{"role": "user", "content": image}], [])


def test_a_template_cannot_reach_into_this_process(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_folder() / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    chat = ChatFormat(tmp_path, DecoderConfig.from_folder(tiny_folder()))
    with pytest.raises(UsageError, match="refused the conversation"):
        chat.render(TALK, [])


def test_a_folder_without_a_template_is_told(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder() / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    with pytest.raises(UsageError, match="no chat template"):
        ChatFormat(tmp_path, DecoderConfig.from_folder(tiny_folder()))


class Writing:
    """A policy that samples a given text, and keeps its prompts."""

    system_prompt = None

    def __init__(self, chat, text):
        self.chat, self.prompts = chat, []
        self._ids = chat.encode(text)

    async def sample(self, prompt, params, *, pictures=(), stopped=None):
        self.prompts.append(prompt)
        return SampledTurn(self._ids, [-1.0] * len(self._ids), "stop", 0, None)


async def test_a_policy_continues_the_beginning_of_its_turn(chat):
    policy = Writing(chat, " three apples")
    talk = [{"role": "user", "content": "Which item?"}]
    begun = [*talk, {"role": "assistant", "content": "the answer is"}]
    model = PolicyChatModel("p", policy)
    completion = await model.complete(begun, TOOLS, SamplingParams())
    expected = chat.render_text(talk, TOOLS) + "the answer is"
    assert chat.decode(policy.prompts[-1]) == expected
    assert completion.content == " three apples"
    # The ids of an earlier turn do not end with the beginning of this one.
    earlier = Continuation([5, 6, 7, chat.end_id], 1)
    again = await model.complete(begun, TOOLS, SamplingParams(), continuation=earlier)
    assert chat.decode(policy.prompts[-1]) == expected
    assert not again.extended


async def test_a_policy_continues_no_tool_calls(chat):
    model = PolicyChatModel("p", Writing(chat, "3"))
    with pytest.raises(UsageError, match="add their results"):
        await model.complete(TALK[:3], TOOLS, SamplingParams())


def first_tokens(chat, text):
    """Return the texts of the tokens with which an answer that is exactly `text` may begin."""
    logits = torch.zeros(chat.tokenizer.get_vocab_size())
    chat.grammars.compile(f'start: "{text}"').allow(logits)
    allowed = torch.nonzero(logits == 0).flatten().tolist()
    return {chat.tokenizer.decode([token]) for token in allowed}


def test_a_replaced_folder_has_the_grammar_of_its_tokenizer(tmp_path):
    folder = tmp_path / "model"
    for number, letters in enumerate(("apple", "quartz")):
        create_tiny(
            folder if number == 0 else tmp_path / "other",
            [letters] * 50,
            vocab_size=300,
            hidden=32,
            layers=1,
            max_context=64,
        )
    config = DecoderConfig.from_folder(folder)
    before = ChatFormat(folder, config)
    assert "apple" in first_tokens(before, "apple")
    again = ChatFormat(folder, config)
    assert again.grammars is before.grammars
    shutil.copyfile(tmp_path / "other" / "tokenizer.json", folder / "tokenizer.json")
    after = ChatFormat(folder, config)
    assert "quartz" in first_tokens(after, "quartz")
    assert "quartz" not in first_tokens(before, "quartz")
