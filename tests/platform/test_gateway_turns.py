"""A streamed turn says what the whole turn says, wherever it is cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.tiny_policy import tiny_folder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hud.engine.toolcalls import parse_output
from hud.platform.gateway.detokenizing import Vocabulary
from hud.platform.gateway.stopping import StopScanner
from hud.platform.gateway.turns import Said, TurnParser
from hud.trace import ToolCall

PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "look", "arguments": {"at": 1}}',
        '{"name": "look", "arguments": "{\\"at\\": 2}"}',
        '[{"name": "look", "parameters": {}}, {"name": "look"}]',
        '{"name": "other"}',
        "{",
        "}",
        "[",
        "<",
        "<tool",
        "</",
        " ",
        "\n",
        "\u00a0",
        "text",
        "wörter 🍎",
    ]
)
TURNS = st.lists(PIECES, max_size=8).map("".join)


def cut(text, places):
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def streamed(pieces, **options):
    parser = TurnParser(["look"], **options)
    said = [piece for text in pieces for piece in parser.take(text)] + parser.end()
    texts = {
        kind: "".join(one.text for one in said if isinstance(one, Said) and one.kind == kind)
        for kind in ("text", "reasoning")
    }
    calls = [(one.name, one.arguments) for one in said if isinstance(one, ToolCall)]
    return texts["text"] or None, texts["reasoning"] or None, calls, parser.malformed


def whole(text):
    parsed = parse_output(text, ["look"])
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return parsed.content, parsed.reasoning, calls, parsed.malformed


@settings(max_examples=400, deadline=None)
@given(TURNS, st.lists(st.integers(min_value=0), max_size=12))
def test_the_stream_says_what_the_whole_says(text, places):
    if "</think>" in text and not text.lstrip().startswith(("<think>", "</think>")):
        return  # Nothing opened it: the stream has shown the text before.
    assert streamed(cut(text, places)) == whole(text)


@settings(max_examples=200, deadline=None)
@given(TURNS, st.lists(st.integers(min_value=0), max_size=12))
def test_a_prompt_that_opens_thinking_counts_as_its_beginning(text, places):
    assert streamed(cut(text, places), opened=True) == whole("<think>" + text)


@given(TURNS, st.lists(st.integers(min_value=0), max_size=12))
def test_calls_that_are_forbidden_are_text(text, places):
    content, _, calls, malformed = streamed(cut("x" + text, places), calls=False)
    assert (content, calls, malformed) == (("x" + text).strip(), [], False)


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
        if scanner.found is not None:
            break
    if scanner.found is None:
        shown += scanner.end()
    found = [text.find(stop) for stop in stops if stop in text]
    if not found:
        assert (shown, scanner.found) == (text, None)
        return
    assert scanner.found in stops
    assert text.startswith(shown + scanner.found)
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


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=299), max_size=24))
def test_tokens_drawn_at_random_read_as_the_tokenizer_reads_them(ids):
    vocabulary = TOKENIZERS["byte level"]
    reader = vocabulary.detokenizer()
    pieces = "".join(reader.take([token]) for token in ids) + reader.end()
    assert pieces == vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
