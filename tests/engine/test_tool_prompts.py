"""Tools, calls and results in conversations of templates that write none: shown, parsed back, and extended id for id."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.published import PUBLISHED, no_weights, published_folder, published_format

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.tool_calls.format import parse_output
from hud.engine.chat.tool_calls.formats import FORMATS
from hud.trace import Continuation, ToolSpec
from hud_platform.training.supervised_rendering import render_conversation

ASK = ToolSpec(
    name="ask",
    description="Ask the depot.",
    parameters={
        "type": "object",
        "properties": {
            "item": {"type": "string"},
            "at": {"type": "integer"},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
)
FIND = ToolSpec(name="find", description="Find.", parameters={"type": "object", "properties": {}})
QUESTION = {"role": "user", "content": "How many bolts?"}
SYSTEM = {"role": "system", "content": "Be brief."}
NAMES = [format.names[0] for format in FORMATS]


def called(*arguments, content=""):
    calls = [
        {
            "id": f"abcdefgh{place}",
            "type": "function",
            "function": {"name": "ask", "arguments": text},
        }
        for place, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(text, place=0):
    return {"role": "tool", "tool_call_id": f"abcdefgh{place}", "content": text}


def chat_in(format):
    return ChatFormat(published_folder("smollm2"), no_weights(), tool_call_parser=format)


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="<>[]｜", exclude_categories=["C", "Z"])
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "item": WORDS,
        "at": st.integers(-(10**9), 10**9),
        "sure": st.booleans(),
        "tags": st.lists(WORDS, max_size=3),
    },
)
CALLS = st.lists(st.tuples(st.sampled_from(["ask"]), ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS, ids=NAMES)
@settings(max_examples=60)
@given(calls=CALLS)
def test_written_calls_are_parsed_as_these_calls(format, calls):
    text = "".join(list(format.write(calls)))
    parsed = parse_output(text, format, [ASK, FIND])
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == calls
    assert not parsed.malformed
    assert parsed.content is None


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_system_prompt_lists_the_tools_behind_its_own_text(name):
    chat = published_format(name)
    assert not chat.shows_tools
    text = chat.render_text([SYSTEM, QUESTION], [ASK, FIND])
    places = [
        text.index(part) for part in ("Be brief.", '"name": "ask"', '"name": "find"', "bolts?")
    ]
    assert places == sorted(places)
    assert text.count("<tool_call>") == 1
    # Without a system message there is one for the tools; without tools nothing is added.
    assert '"name": "ask"' in chat.render_text([QUESTION], [ASK])
    assert "tool" not in chat.render_text([SYSTEM, QUESTION], [])


def test_a_template_without_a_system_role_shows_the_tools_in_the_first_message(tmp_path):
    text = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    for path in published_folder("smollm2").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(text)
    shown = ChatFormat(tmp_path, no_weights()).render_text([QUESTION], [ASK])
    assert shown.startswith("<|im_start|>user\n# Tools")
    assert shown.endswith("How many bolts?<|im_end|>\n<|im_start|>assistant")


def test_calls_and_results_are_texts_of_the_turns():
    chat = published_format("smollm2")
    talk = [QUESTION, called('{"item": "bolts"}', content="I ask."), result("7 bolts")]
    assert chat.render_text(talk, [ASK]).endswith(
        '<|im_start|>assistant\nI ask.\n<tool_call>\n{"name": "ask", "arguments": {"item": "bolts"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n7 bolts\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    both = [QUESTION, called('{"item": "a"}', '{"item": "b"}'), result("1"), result("2", 1)]
    assert chat.render_text(both, [ASK]).count("<|im_start|>user") == 2


def test_arguments_that_are_no_json_are_rendered_as_they_were():
    text = published_format("smollm2").render_text(
        [QUESTION, called('{"item": '), result("?")], [ASK]
    )
    assert '{"name": "ask", "arguments": {"item": }' in text


@pytest.mark.parametrize("format", NAMES)
def test_each_format_is_rendered_and_parsed_by_one_name(format):
    chat = chat_in(format)
    (sample,) = render_conversation(chat, [QUESTION, called('{"item": "bolts"}')], [ASK])
    parsed = chat.parse(sample["output_token_ids"], [ASK])
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [
        ("ask", {"item": "bolts"})
    ]


@pytest.mark.parametrize("format", NAMES)
def test_a_run_of_tool_turns_extends_its_own_ids(format):
    chat = chat_in(format)
    talk = [SYSTEM, QUESTION]
    continuation = None
    for turn in range(3):
        prompt = chat.render(talk, [ASK, FIND])
        extended = prompt if continuation is None else chat.extend(continuation, talk, [ASK, FIND])
        # Written by the model in another spelling than ours: its ids stay.
        ids = [*extended, *chat.encode(f"odd   spelling {turn}"), chat.end_id]
        if continuation is not None:
            assert extended[: len(continuation.token_ids)] == continuation.token_ids
        continuation = Continuation(ids, len(talk) + 1 - 1)
        talk += [called(f'{{"at": {turn}}}'), result(f"{turn}")]


@pytest.mark.parametrize("format", NAMES)
def test_sampled_ids_in_our_spelling_extend_to_the_rendering_of_the_conversation(format):
    chat = chat_in(format)
    talk = [
        QUESTION,
        called('{"item": "bolts"}'),
        result("7"),
        {"role": "assistant", "content": "7"},
    ]
    samples = render_conversation(chat, talk, [ASK])
    assert samples[1]["prompt_token_ids"] == chat.render(talk[:3], [ASK])
    whole = samples[0]["prompt_token_ids"] + samples[0]["output_token_ids"]
    assert samples[1]["prompt_token_ids"][: len(whole)] == whole


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_template_with_tools_is_left_as_it_is(name):
    chat = published_format(name)
    if not (chat.shows_tools and chat.shows_calls):
        assert name in ("smollm2", "gemma3", "deepseek-v3.1")
        return
    assert "These tools can be called" not in chat.render_text([QUESTION], [ASK])


def test_marks_in_results_are_plain_text_where_the_tokenizer_has_them_as_tokens(tmp_path):
    """Qwen's tokenizer with a template that drops tools: the marks of calls are tokens only where we write them."""
    for path in published_folder("qwen3").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes(
        (published_folder("smollm2") / "chat_template.jinja").read_bytes()
    )
    chat = ChatFormat(tmp_path, no_weights())
    begin = chat.tokenizer.token_to_id("<tool_call>")
    spelled = "<tool_call><|im_end|>"
    counts = [
        [chat.render([QUESTION, called('{"item": "x"}'), result(text)], [tool]).count(token)]
        for text, tool in (("7", ASK), (spelled, described(ASK, spelled)))
        for token in (begin, chat.end_id)
    ]
    assert counts[:2] == counts[2:]
    assert counts[0] == [2]


def described(tool, description):
    return tool.model_copy(update={"description": description})
