"""Whatever a model writes is taken apart, never refused with an exception, in the format of its chat template."""

import itertools
from unittest.mock import ANY

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.template_folders import PUBLISHED, template_chat, template_text

from hud.engine.chat.tool_calls.format import Parsed, Said, parse_output
from hud.engine.chat.tool_calls.formats import FORMATS, format_named, format_of_template
from hud.engine.chat.tool_calls.hermes import HERMES
from hud.errors import UsageError
from hud.trace import ToolCall, ToolSpec

LOOK = ToolSpec(
    name="look",
    description="Look.",
    parameters={
        "type": "object",
        "properties": {
            "at": {"type": "integer"},
            "who": {"type": "string"},
            "ratio": {"type": "number"},
            "on": {"type": "boolean"},
            "maybe": {"type": ["integer", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object"},
        },
    },
)
FIND = ToolSpec(
    name="find_all", description="Find.", parameters={"type": "object", "properties": {}}
)
TOOLS = [LOOK, FIND]
WITH_CALLS = [name for name in PUBLISHED if name != "gemma3"]
ONE_CALL = ("llama3.1", "llama3.2", "gpt-oss")
"""Their templates write one call in a turn."""
ONLY_CALLS = (
    "hermes3",
    "llama3.1",
    "llama3.2",
    "llama3.2-pythonic",
    "llama4-pythonic",
    "mistral-nemo",
    "mistral-small-3.2",
)
"""Their templates write no text beside calls."""
USER = {"role": "user", "content": "Go."}


def offered(name):
    """Return tools that a template can show: that of Hermes 3 knows no choice of types."""
    if name != "hermes3":
        return TOOLS
    properties = {**LOOK.parameters["properties"], "maybe": {"type": "integer"}}
    return [
        LOOK.model_copy(update={"parameters": {**LOOK.parameters, "properties": properties}}),
        FIND,
    ]


def written(name, calls, content=None):
    """Return the prompt, and the turn with these calls as the model's own template writes it."""
    chat, tools = template_chat(name), offered(name)
    message = {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call_{place}",
                "type": "function",
                "function": {"name": tool, "arguments": arguments},
            }
            for place, (tool, arguments) in enumerate(calls)
        ],
    }
    prompt = chat.render_text([USER], tools)
    whole = chat.render_text([USER, message], tools, generation=False)
    if whole.startswith(prompt):
        turn = whole[len(prompt) :]
    else:
        header = "<｜Assistant｜>" if "deepseek" in name else "<|assistant|>"
        turn, prompt = whole.rpartition(header)[2], ""
    for end in (PUBLISHED[name].end, *PUBLISHED[name].ends):
        turn = turn.split(end)[0]
    return prompt, turn


def read(name, prompt, turn):
    chat = template_chat(name)
    parsed = chat.parse(chat.encode(turn), TOOLS, opened=chat.opens_reasoning(chat.encode(prompt)))
    return parsed, [(call.name, call.arguments) for call in parsed.tool_calls]


def cut(text, places):
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def streamed(format, pieces, **options):
    parser = format.parser(TOOLS, **options)
    said = [piece for text in pieces for piece in parser.take(text)] + parser.end()
    texts = {
        kind: "".join(one.text for one in said if isinstance(one, Said) and one.kind == kind)
        for kind in ("text", "reasoning")
    }
    calls = [(one.name, one.arguments) for one in said if isinstance(one, ToolCall)]
    return texts["text"] or None, texts["reasoning"] or None, calls, parser.malformed


def whole(format, text, **options):
    parsed = parse_output(text, format, TOOLS, **options)
    calls = [(call.name, call.arguments) for call in parsed.tool_calls]
    return parsed.content, parsed.reasoning, calls, parsed.malformed


# -- which format ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_template_chooses_its_format(name):
    assert format_of_template(template_text(name)).names[0] == PUBLISHED[name].format
    assert template_chat(name).tool_format.names[0] == PUBLISHED[name].format


def test_names_are_those_of_vllm_and_of_sglang():
    assert format_named("qwen3_xml") is format_named("qwen3_coder")
    assert format_named("gpt-oss") is format_named("openai")
    assert format_named("qwen25") is HERMES
    with pytest.raises(UsageError, match="'other'; there are .*qwen3_coder"):
        format_named("other")


# -- golden turns, written by the models' own templates ------------------------------------------------

GOLDEN = {
    "qwen2.5": '<tool_call>\n{"name": "look", "arguments": {"at": 3, "who": "007"}}\n</tool_call>',
    "qwen3.5": "<tool_call>\n<function=look>\n<parameter=at>\n3\n</parameter>\n<parameter=who>\n007\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3.1": '{"name": "look", "parameters": {"at": 3, "who": "007"}}',
    "llama4-pythonic": '[look(at="3", who="007")]',
    "mistral-nemo": '[TOOL_CALLS][{"name": "look", "arguments": {"at": 3, "who": "007"}, "id": "#"}]',
    "mistral-small-3.2": '[TOOL_CALLS]look[CALL_ID]#[ARGS]{"at": 3, "who": "007"}',
    "ministral-3": '[TOOL_CALLS]look[ARGS]{"at": 3, "who": "007"}',
    "deepseek-v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
    '{"at": 3, "who": "007"}\n```<｜tool▁call▁end｜>',
    "deepseek-v3.1": '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": 3, "who": "007"}<｜tool▁call▁end｜>',
    "glm-4.6": "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>3</arg_value>\n<arg_key>who</arg_key>\n"
    "<arg_value>007</arg_value>\n</tool_call>",
    "glm-4.7": "<tool_call>look<arg_key>at</arg_key><arg_value>3</arg_value><arg_key>who</arg_key>"
    "<arg_value>007</arg_value></tool_call>",
    "gpt-oss": ' to=functions.look<|channel|>commentary json<|message|>{"at": 3, "who": "007"}',
}
CALL = ("look", {"at": 3, "who": "007"})


@pytest.mark.parametrize("name", WITH_CALLS)
def test_the_call_that_a_template_writes_is_read(name):
    arguments = {"at": 3, "who": "v007"} if name == "llama3.2-pythonic" else CALL[1]
    prompt, turn = written(name, [("look", arguments)])
    ids = template_chat(name).tool_format.call_id("call_0")
    assert GOLDEN.get(name, "").replace("#", ids) in turn
    parsed, calls = read(name, prompt, turn)
    assert calls == [("look", arguments)]
    assert (parsed.content, parsed.reasoning, parsed.malformed) == (None, None, False)


@pytest.mark.parametrize("name", WITH_CALLS)
def test_an_integer_beyond_64_bits_keeps_its_digits(name):
    at = 12345678901234567890123
    prompt, turn = written(name, [("look", {"at": at})])
    assert read(name, prompt, turn)[1] == [("look", {"at": at})]


@pytest.mark.parametrize("name", WITH_CALLS)
def test_what_a_model_may_leave_out_or_write_around_is_read(name):
    """A turn that ends behind its call without the closing mark, as one does whose end token came early."""
    _, turn = written(name, [("find_all", {})])
    format = template_chat(name).tool_format
    for text in (turn, turn.rstrip(), turn + "\n"):
        assert whole(format, text)[2] == [("find_all", {})]


@pytest.mark.parametrize(
    "name", [name for name in WITH_CALLS if name not in (*ONLY_CALLS, "gpt-oss")]
)
def test_text_before_a_call_is_kept(name):
    prompt, turn = written(name, [CALL], content="Let me look.")
    parsed, calls = read(name, prompt, turn)
    assert (parsed.content, calls) == ("Let me look.", [CALL])


def test_reasoning_of_each_family():
    assert whole(HERMES, "<think>hm, 3</think>\nThe answer is 3.")[:2] == (
        "The answer is 3.",
        "hm, 3",
    )
    assert whole(format_named("mistral"), "[THINK]hm[/THINK]3")[:2] == ("3", "hm")
    harmony = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": 3}<|call|>'
    )
    assert whole(format_named("openai"), harmony) == ("I look.", "hm", [("look", {"at": 3})], False)
    final = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 3."
    assert whole(format_named("openai"), final) == ("It is 3.", "hm", [], False)
    assert whole(format_named("openai"), "It is 3.") == ("It is 3.", None, [], False)


def test_reasoning_that_the_prompt_opened_and_the_turn_did_not_close_is_reasoning():
    chat = template_chat("qwen3.5")
    prompt = chat.render([USER], TOOLS)
    assert chat.opens_reasoning(prompt)
    parsed = chat.parse(chat.encode("I was cut short"), TOOLS, opened=True)
    assert (parsed.content, parsed.reasoning) == (None, "I was cut short")


@pytest.mark.parametrize("name", WITH_CALLS)
def test_marks_of_reasoning_in_an_argument_are_text_whole_and_streamed(name):
    format = template_chat(name).tool_format
    for mark in (*format.thinking, "<think>", "</think>"):
        call = ("look", {"who": f"a {mark} b"})
        turn = written(name, [call])[1]
        if name == "llama3.2-pythonic":  # Its template writes strings without quotes.
            turn = turn.replace("who=a", "who='a").replace("b)", "b')")
        assert read(name, "", turn) == (Parsed(None, None, ANY), [call])
        assert streamed(format, list(turn)) == (None, None, [call], False)
        assert whole(format, turn) == (None, None, [call], False)


def test_a_mark_outside_of_calls_ends_reasoning_that_the_turn_did_not_begin():
    call = '<tool_call>{"name": "look", "arguments": {"who": "a </think> b"}}</tool_call>'
    read_call = [("look", {"who": "a </think> b"})]
    assert whole(HERMES, f"hm</think>{call}") == (None, "hm", read_call, False)
    assert whole(HERMES, f"I look. {call}") == ("I look.", None, read_call, False)
    assert whole(HERMES, "First <tool_call>, then</think>3") == (
        "3",
        "First <tool_call>, then",
        [],
        False,
    )
    assert whole(HERMES, call[:-14]) == (None, None, [], True)


def test_several_calls_get_ids_of_their_own():
    block = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    assert len({call.id for call in parse_output(block * 2, HERMES).tool_calls}) == 2


def test_a_turn_that_is_plain_json_is_a_call_only_for_a_known_tool():
    text = '{"name": "look", "arguments": {"at": 3}}'
    for name in ("hermes", "json"):
        assert whole(format_named(name), text)[2] == [("look", {"at": 3})]
        other = text.replace("look", "other")
        assert whole(format_named(name), other)[0] == other


def test_a_mark_in_an_argument_of_mistral_begins_no_call():
    format = format_named("mistral")
    first, second = (
        '[TOOL_CALLS]look[ARGS]{"who": "[TOOL_CALLS]"}',
        '[TOOL_CALLS]look[ARGS]{"at": 3}',
    )
    assert whole(format, first + second)[2:] == (
        [("look", {"who": "[TOOL_CALLS]"}), ("look", {"at": 3})],
        False,
    )
    assert whole(format, "[TOOL_CALLS]look[ARGS]{broken" + second)[2:] == (
        [("look", {"at": 3})],
        True,
    )


def test_ids_are_of_the_form_that_mistral_takes():
    format = format_named("mistral")
    calls = parse_output(
        "[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS]look[CALL_ID]abc123def[ARGS]{}", format
    ).tool_calls
    assert [len(call.id) for call in calls] == [9, 9]
    assert calls[1].id == "abc123def" == format.call_id("abc123def")


# -- types by the schema --------------------------------------------------------------------------------


def xml(**values):
    shown = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=look>\n{shown}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("who", "01234", "01234"),
        ("who", "true", "true"),
        ("who", '{"a": 1}', '{"a": 1}'),
        ("who", "two\nlines", "two\nlines"),
        ("who", "</parameter> inside", "</parameter> inside"),
        ("who", "", ""),
        ("at", "7", 7),
        ("at", "7.0", 7),
        ("at", "seven", "seven"),
        ("ratio", "1e3", 1000.0),
        ("ratio", "3", 3),
        ("on", "True", True),
        ("on", "false", False),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "5", 5),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("tags", "['a', 'b']", ["a", "b"]),
        ("more", '{"a": [1]}', {"a": [1]}),
        ("more", "{'a': True}", {"a": True}),
        ("unknown", "12", 12),
        ("unknown", "x", "x"),
    ],
)
def test_a_value_has_the_type_that_the_schema_gives_it(key, text, value):
    calls = whole(format_named("qwen3_coder"), xml(**{key: text}))[2]
    assert calls == [("look", {key: value})]
    glm = f"<tool_call>look\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    if "</parameter>" not in text:
        assert whole(format_named("glm45"), glm)[2] == [("look", {key: value})]


def test_a_schema_that_refers_to_itself_ends():
    deep = {"anyOf": [{"$ref": "#/$defs/D"}] * 30}
    tool = ToolSpec(
        name="look",
        description="",
        parameters={
            "type": "object",
            "properties": {"at": {"$ref": "#/$defs/D"}},
            "$defs": {"D": deep},
        },
    )
    assert parse_output(xml(at="3"), format_named("qwen3_coder"), [tool]).tool_calls[
        0
    ].arguments == {"at": 3}


# -- malformed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("hermes", f"<tool_call>{block}</tool_call>")
            for block in ("{broken", "[1, 2]", '{"arguments": {}}', "")
        ),
        ("hermes", '<tool_call>{"name": "a", "arguments": [1]}</tool_call>'),
        ("qwen3_coder", '<tool_call>{"name": "look", "arguments": {}}</tool_call>'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=look>\n<parameter=at>\n3\n</function>\n</tool_call>",
        ),
        ("qwen3_coder", "<tool_call>\n<function=look>\nat 3\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>look\n<arg_key>at</arg_key>\n</tool_call>"),
        ("mistral", "[TOOL_CALLS]look[ARGS]{broken"),
        ("mistral", '[TOOL_CALLS][{"name": "look"'),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n{}<｜tool▁call▁end｜>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>look{}<｜tool▁call▁end｜>"),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama4_pythonic", "<|python_start|>[look(__import__('os'))]<|python_end|>"),
        ("openai", "<|channel|>commentary to=functions.look<|message|>{broken<|call|>"),
    ],
)
def test_a_call_that_cannot_be_read_is_malformed(name, text):
    assert whole(format_named(name), "Well. " + text if name != "openai" else text)[2:] == (
        [],
        True,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{"name": "other", "parameters": {}}'),
        ("llama3_json", '{"name": "look", "parameters": {}'),
        ("pythonic", "[look(at=3"),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[other()]"),
        ("json", '{"name":'),
        ("gemma", "anything"),
    ],
)
def test_a_turn_without_marks_that_is_no_call_stays_text(name, text):
    format = HERMES if name == "gemma" else format_named(name)
    assert whole(format, text) == (text, None, [], False)


def test_a_closing_mark_in_a_string_does_not_end_the_call():
    text = 'So: <tool_call>{"name": "look", "arguments": {"who": "</tool_call>"}}</tool_call> Done.'
    assert whole(HERMES, text) == ("So:  Done.", None, [("look", {"who": "</tool_call>"})], False)
    broken = '<tool_call>{oops</tool_call><tool_call>{"name": "look", "arguments": {}}</tool_call>'
    assert whole(HERMES, broken) == (None, None, [("look", {})], True)


# -- round trips and streams ----------------------------------------------------------------------------

JSON_TEXT = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12),
    st.lists(
        st.sampled_from(['"', "\\", "\n", "</tool_call>", "```", "{", "]", "é", " "]), max_size=4
    ).map("".join),
)
MARKUP_TEXT = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<>"), max_size=12
)
PLAIN_TEXT = st.text(alphabet="abc XYZ_-.", max_size=8)
WORD = st.text(alphabet="abc", min_size=1, max_size=5).map(lambda word: "v" + word)


def arguments_with(text):
    numbers = st.integers(min_value=-(2**63), max_value=2**63 - 1)
    return st.fixed_dictionaries(
        {},
        optional={
            "at": numbers,
            "who": text,
            "ratio": st.floats(allow_nan=False, allow_infinity=False),
            "on": st.booleans(),
            "maybe": st.none() | numbers,
            "tags": st.lists(text, max_size=3),
            "more": st.dictionaries(text, numbers | text, max_size=2),
        },
    )


ARGUMENTS = {
    "qwen3_coder": arguments_with(MARKUP_TEXT),
    "glm45": arguments_with(MARKUP_TEXT),
    "llama4_pythonic": arguments_with(PLAIN_TEXT),
    "pythonic": arguments_with(WORD),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CALLS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_a_template_renders_is_parsed_back_whole_and_streamed(name, data):
    format = template_chat(name).tool_format
    arguments = ARGUMENTS.get(format.names[0], arguments_with(JSON_TEXT))
    call = st.tuples(st.just("look"), arguments) | st.just(("find_all", {}))
    calls = data.draw(st.lists(call, min_size=1, max_size=1 if name in ONE_CALL else 3))
    prompt, turn = written(name, calls)
    parsed, found = read(name, prompt, turn)
    assert found == calls
    assert (parsed.content, parsed.malformed) == (None, False)
    places = data.draw(st.lists(st.integers(min_value=0), max_size=12))
    opened = prompt.rstrip().endswith(format.thinking[0]) or not prompt
    assert streamed(format, cut(turn, places), opened=opened and "</think>" in turn)[2:] == (
        calls,
        False,
    )


PIECES = st.sampled_from(
    [
        "<think>", "</think>", "[THINK]", "[/THINK]",
        "<tool_call>", "</tool_call>", "<function=look>", "</function>", "<parameter=at>", "</parameter>", "1",
        "look", "<arg_key>", "at", "</arg_key>", "<arg_value>", "</arg_value>",
        "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        "<|python_tag|>", "<|python_start|>", "<|python_end|>", "[look(at=1)]", "look(at=", ")",
        "<|channel|>", "analysis", "final", "commentary", " to=functions.look", "<|message|>", "<|end|>",
        "<|start|>assistant", "<|call|>",
        '{"name": "look", "arguments": {"at": 1}}',
        '{"name": "look", "arguments": "{\\"at\\": 2}"}',
        '[{"name": "look", "parameters": {}}, {"name": "look"}]',
        '{"name": "other"}', ";",
        '"</tool_call>"', "{", "}", "[", "<", "<tool", "</", " ", "\n", "\u00a0", "text", "wörter 🍎",
    ]
)  # fmt: skip
TURNS = st.lists(PIECES, max_size=9).map("".join)
EACH = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.names[0])


@pytest.mark.slow
@EACH
@settings(max_examples=150, deadline=None)
@given(text=st.one_of(TURNS, st.text()), places=st.lists(st.integers(min_value=0), max_size=12))
def test_the_stream_says_what_the_whole_says(format, text, places):
    think, thought = format.thinking
    if thought in text and not text.lstrip().startswith((think, thought)):
        return  # Nothing opened it: the stream has shown the text before.
    assert streamed(format, cut(text, places)) == whole(format, text)


@EACH
@settings(max_examples=60, deadline=None)
@given(text=TURNS, places=st.lists(st.integers(min_value=0), max_size=12))
def test_a_prompt_that_opens_reasoning_counts_as_its_beginning(format, text, places):
    assert streamed(format, cut(text, places), opened=True) == whole(
        format, format.thinking[0] + text
    )


@EACH
@given(text=TURNS, places=st.lists(st.integers(min_value=0), max_size=12))
def test_calls_that_are_forbidden_are_text(format, text, places):
    content, _, calls, malformed = streamed(format, cut("x" + text, places), calls=False)
    assert (calls, malformed) == ([], False)
    if format.names[0] != "openai":
        assert content == ("x" + text).strip()


@EACH
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(TURNS, st.text()))
def test_nothing_raises_and_arguments_are_objects(format, text):
    assert all(isinstance(arguments, dict) for _, arguments in whole(format, text)[2])


@EACH
def test_a_deep_or_endless_turn_is_read_in_time(format):
    for text in (
        "[" * 30_000,
        '{"name": "look", "arguments": ' + "[" * 30_000,
        "</tool_call>" * 5_000,
    ):
        for begin in (
            "",
            "<tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            "<tool_call><function=look><parameter=at>",
        ):
            whole(format, begin + text)
