"""Turns of local models: calls in the format of their template, grammars that bind them, stop strings, characters."""

import itertools
import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.template_folders import PUBLISHED, template_chat, template_folder
from tests.engine.tiny_policy import tiny_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hud.inference.dialects.events import CallArguments, CallBegun, Finished, TextDelta
from hud.inference.dialects.request import GenerationRequest, OutputFormat, ToolChoice
from hud.trace import ToolSpec
from hud_platform.gateway.chat_formats import format_of
from hud_platform.gateway.detokenizing import Vocabulary
from hud_platform.gateway.grammar import grammar_of
from hud_platform.gateway.stopping import StopScanner
from hud_platform.gateway.turn_reader import Prompt, TurnReader
from hud_platform.serving.token_engine import TokenDelta, TokenEnd


def cut(text, places):
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def ask(chat, **options):
    tool = ToolSpec(
        name="look",
        description="Look.",
        parameters={
            "type": "object",
            "properties": {"at": {"type": "integer"}, "zip": {"type": "string"}},
            "required": ["at"],
        },
    )
    return GenerationRequest(model=chat, tools=[tool], **options)


TURN = (
    "I look.\n\n<tool_call>\n<function=look>\n<parameter=at>\n3\n</parameter>\n<parameter=zip>\n01234\n"
    "</parameter>\n</function>\n</tool_call><|im_end|>"
)


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_in_the_templates_own_format_is_told_and_its_tokens_stay_as_sampled(stream):
    format = format_of(template_folder("qwen3.5"))
    ids = format.chat.encode(TURN)
    reader = TurnReader(format, ask("m", stream=stream, return_token_ids=True), 0, Prompt([1]))
    events = []
    for token in ids:
        events += reader.take(TokenDelta([token], [-0.5], "v1"))
    events += reader.end(TokenEnd("stop", 0, "v1"))
    told = [event for event in events if not isinstance(event, Finished)]
    text = "".join(event.text for event in told if isinstance(event, TextDelta))
    arguments = [json.loads(event.text) for event in told if isinstance(event, CallArguments)]
    assert (text, arguments) == ("I look.", [{"at": 3, "zip": "01234"}])
    assert [event.name for event in told if isinstance(event, CallBegun)] == ["look"]
    finished = events[-1]
    assert (finished.reason, finished.malformed) == ("tool_calls", False)
    assert finished.sample.output_token_ids == ids


def test_a_name_overrides_the_format_of_the_template():
    folder = template_folder("qwen3.5")
    assert format_of(folder, "hermes").chat.tool_format.names[0] == "hermes"
    assert format_of(folder).chat.tool_format.names[0] == "qwen3_coder"


# -- grammars of calls that are required ---------------------------------------------------------------


def follow(name, grammar, text):
    """Return how much of the text the grammar lets a model write, and whether the turn may end there."""
    chat = template_chat(name)
    constraint = chat.grammars.compile(grammar)
    ids = chat.encode(text)
    for place, token in enumerate([*ids, chat.end_id]):
        logits = torch.zeros(chat.tokenizer.get_vocab_size())
        constraint.allow(logits)
        if logits[token] == float("-inf"):
            return chat.tokenizer.decode(ids[:place], skip_special_tokens=False)
        constraint.take(token)
    return "all"


REQUIRED = ToolChoice("required")


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "gemma3"])
def test_a_required_call_is_bound_to_the_templates_own_format(name):
    chat = template_chat(name)
    request = ask("m", tool_choice=REQUIRED)
    rendered = chat.render_text(
        [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "function": {"name": "look", "arguments": {"at": 3, "zip": "01"}},
                        "type": "function",
                    }
                ],
            },
        ],
        request.tools,
        generation=False,
    )
    begin = {
        "llama4_pythonic": "[look",
        "pythonic": "[look",
        "llama3_json": '{"name": "look"',
        "openai": "<|channel|>commentary",
    }
    mark = {
        "mistral": "[TOOL_CALLS]",
        "deepseek_v3": "<｜tool▁calls▁begin｜>",
        "deepseek_v31": "<｜tool▁calls▁begin｜>",
    }
    format = PUBLISHED[name].format
    at = rendered.rindex(begin.get(format) or mark.get(format, "<tool_call>"))
    turn = rendered[at:].split(PUBLISHED[name].end)[0].split("<|call|>")[0]
    # What a template alone adds: ids, the quotes of values that are no strings, the place of the recipient.
    turn = re.sub(r', "id": "\w{9}"', "", re.sub(r"\[CALL_ID\]\w{9}", "", turn)).rstrip()
    turn = turn.replace("＜", "<").replace('at="3"', "at=3").replace("zip=01", 'zip="01"')
    if format == "openai":
        turn = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": 3, "zip": "01"}'
    if format == "deepseek_v3":
        turn = re.sub(r"\s+(?=<｜tool▁call)", "", turn)
    grammar = grammar_of(chat, request, opened=False)
    assert follow(name, grammar, turn) == "all"
    assert chat.parse(chat.encode(turn), request.tools).tool_calls[0].arguments == {
        "at": 3,
        "zip": "01",
    }
    assert follow(name, grammar, turn.replace("look", "leap")) != "all"
    assert follow(name, grammar, "No.") == ""


def test_a_form_is_kept_behind_the_header_that_harmony_puts_before_answers():
    chat = template_chat("gpt-oss")
    request = GenerationRequest(
        model="m", format=OutputFormat({"type": "object", "properties": {"a": {"type": "integer"}}})
    )
    grammar = grammar_of(chat, request, opened=False)
    think = "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
    final = '<|channel|>final<|message|>{"a": 1}'
    assert follow("gpt-oss", grammar, think + final) == follow("gpt-oss", grammar, final) == "all"


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(min_value=0), max_size=12),
)
def test_text_ends_before_the_first_stop_string(text, stops, places):
    scanner = StopScanner(tuple(stops))
    shown = ""
    for piece in cut(text, places):
        shown += scanner.take(piece)
        if scanner.stop_string is not None:
            break
    if scanner.stop_string is None:
        shown += scanner.end()
    found = [text.find(stop) for stop in stops if stop in text]
    if not found:
        assert (shown, scanner.stop_string) == (text, None)
        return
    assert scanner.stop_string in stops
    assert text.startswith(shown + scanner.stop_string)
    assert not any(stop in shown for stop in stops)


def byte_level():
    return Tokenizer.from_file(str(tiny_folder() / "tokenizer.json"))


def metaspace():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(
        ["look at the apples", "one two three apples"] * 5,
        trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<|end|>", *fallback]),
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


TOKENIZERS = {"byte level": Vocabulary(byte_level()), "metaspace": Vocabulary(metaspace())}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=20), places=st.lists(st.integers(min_value=0), max_size=6))
def test_pieces_of_text_join_to_the_whole_and_split_no_character(name, text, places):
    vocabulary = TOKENIZERS[name]
    ids = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    expected = vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
    reader = vocabulary.detokenizer()
    pieces = [reader.take(part) for part in cut(ids, places)]
    assert "".join(pieces) + reader.end() == expected
    if "\ufffd" not in expected:
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=299), max_size=24))
def test_tokens_drawn_at_random_read_as_the_tokenizer_reads_them(ids):
    vocabulary = TOKENIZERS["byte level"]
    reader = vocabulary.detokenizer()
    pieces = "".join(reader.take([token]) for token in ids) + reader.end()
    assert pieces == vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
