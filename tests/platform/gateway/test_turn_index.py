"""A program's messages lead back to the tokens that the model sampled, unless the program wrote another text in their place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.template_folders import template_folder

from hud.trace import ToolSpec, call_message
from hud_platform.gateway.chat_formats import format_of
from hud_platform.gateway.sealed_thoughts import SEALED_TURNS, turn_name
from hud_platform.gateway.turn_index import TurnIndex

TOOLS = [
    ToolSpec(
        name="edit",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "count": {"type": "number"},
                "all": {"type": "boolean", "default": False},
                "note": {"type": "string"},
            },
        },
    ),
    ToolSpec(name="run"),
]
OPENING = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Mend it."}]


def answer(text="Now  this.\n", thought="Hm.", call="call_1", name="edit", **arguments):
    message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    if call:
        arguments = arguments or {"path": "a.py", "count": 2}
        message["tool_calls"] = [call_message(call, name, json.dumps(arguments))]
    return message


def result(call="call_1", text="done"):
    return {"role": "tool", "tool_call_id": call, "content": text}


class Run:
    """Calls of a program: each turn has ids of its own, after those of the turn that it continues."""

    def __init__(self):
        self.index = TurnIndex()
        self.ids = {}
        self.fresh = iter(range(1000, 1_000_000))

    def call(self, messages, message, tools=TOOLS, sealed=None):
        read = self.index.read(messages, tools)
        beginning = read.continuation.token_ids if read.continuation else []
        key = (len(self.ids) + 1, 0)
        self.ids[key] = [*beginning, *(next(self.fresh) for _ in range(3))]
        self.index.add(
            key, read.digest, message, self.ids[key], continued=read.continued, sealed=sealed
        )
        return key

    def read(self, messages, tools=TOOLS):
        return self.index.read(messages, tools)


def changed(message, **changes):
    """The message, with other arguments of its call, and fields replaced; None removes one."""
    arguments = changes.pop("arguments", None)
    if arguments is not None:
        call = message["tool_calls"][0]
        changes["tool_calls"] = [call_message(call["id"], "edit", arguments)]
    both = {**message, **changes}
    return {name: value for name, value in both.items() if value is not None or name == "content"}


NORMALISED = {
    "thoughts dropped": ({"reasoning_content": None}, {"thoughts"}),
    "thoughts exchanged": ({"reasoning_content": "Of another turn."}, {"thoughts"}),
    "white space": ({"content": "Now this."}, {"white_space"}),
    "order of arguments": ({"arguments": '{"count":2,"path":"a.py"}'}, set()),
    "numbers of JavaScript": ({"arguments": '{"path": "a.py", "count": 2.0}'}, set()),
    "defaults": ({"arguments": '{"all": false, "path": "a.py", "count": 2}'}, {"defaults"}),
    "nulls": ({"arguments": '{"path": "a.py", "count": 2, "note": null}'}, {"defaults"}),
    "parts": ({"content": [{"type": "text", "text": "Now  this."}]}, set()),
}
REWRITTEN = {
    "text": ({"content": "Now that."}, {"text"}),
    "text dropped": ({"content": None}, {"text"}),
    "an argument": ({"arguments": '{"path": "b.py", "count": 2}'}, {"arguments"}),
    "an argument dropped": ({"arguments": '{"path": "a.py"}'}, {"arguments"}),
    "another value than the default": (
        {"arguments": '{"path": "a.py", "count": 2, "all": true}'},
        {"arguments"},
    ),
    "a call more": (
        {"tool_calls": [call_message("call_1", "edit", "{}"), call_message("x", "run", "{}")]},
        {"calls"},
    ),
}


@pytest.mark.parametrize("name", NORMALISED)
def test_a_normalised_answer_is_restored_with_its_ids(name):
    changes, kinds = NORMALISED[name]
    run, sampled = Run(), answer()
    key = run.call(OPENING, sampled)
    request = [*OPENING, changed(sampled, **changes), result()]
    read = run.read(request)
    assert read.continuation.token_ids == run.ids[key]
    assert read.continuation.covered == 2  # System messages do not count.
    assert read.messages == [*OPENING, sampled, result()]
    assert read.rewrites == {(key, kind) for kind in kinds}
    assert not run.read(request).rewrites  # Counted once.


@pytest.mark.parametrize("name", REWRITTEN)
def test_another_text_is_a_branch_and_stays_as_it_is(name):
    changes, kinds = REWRITTEN[name]
    run, sampled = Run(), answer()
    first = run.call(OPENING, sampled)
    request = [*OPENING, changed(sampled, **changes), result()]
    read = run.read(request)
    assert read.continuation is None
    assert read.messages == request
    assert read.rewrites == {(first, kind) for kind in kinds}
    # What is sampled after it is continued as usual.
    later = answer("Good.", None, None)
    key = run.call(request, later)
    again = run.read([*request, later, {"role": "user", "content": "And?"}])
    assert again.continuation.token_ids == run.ids[key]


def test_calls_without_our_ids_are_known_by_what_they_show():
    run, sampled = Run(), answer()
    key = run.call(OPENING, sampled)
    sent = changed(sampled, reasoning_content=None)
    sent["tool_calls"] = [{**sampled["tool_calls"][0], "id": "theirs"}]
    read = run.read([*OPENING, sent, result("theirs")])
    assert read.continued == key
    assert read.messages[2]["tool_calls"][0]["id"] == "theirs"


def test_a_changed_beginning_is_no_continuation():
    run, sampled = Run(), answer()
    run.call(OPENING, sampled)
    opening = [OPENING[0], {"role": "user", "content": "Mend that."}]
    read = run.read([*opening, sampled, result()])
    assert (read.continuation, read.rewrites) == (None, {((1, 0), "conversation")})
    assert read.answers == {(1, 0)}
    assert run.read([*OPENING, sampled, result()], TOOLS[:1]).continuation is None  # Other tools.


def test_of_two_answers_to_one_prompt_the_one_in_the_request_is_continued():
    run = Run()
    first = run.call(OPENING, answer("One.", "A thought.", None))
    second = run.call(OPENING, answer("Two.", "Another.", None))
    for key, text in ((first, "One."), (second, "Two.")):
        after = [*OPENING, answer(text, None, None), {"role": "user", "content": "And?"}]
        read = run.read(after)
        assert (read.continued, read.answers) == (key, {key})


def test_after_a_rewritten_turn_the_one_before_is_continued():
    run, first, second = Run(), answer(), answer("Next.", "Hm!", "call_2", path="b.py")
    key = run.call(OPENING, first)
    request = [*OPENING, first, result()]
    run.call(request, second)
    edited = changed(second, content="Not this.")
    read = run.read([*request, edited, result("call_2")])
    assert read.continued == key
    assert read.continuation.covered == 2
    assert read.messages[-2] == edited


def test_the_beginning_of_an_answer_is_no_continuation():
    run = Run()
    run.call(OPENING, answer("One.", None, None))
    assert run.read([*OPENING, answer("One.", None, None)]).continuation is None


def test_a_turn_without_ids_resolves_and_its_conversation_goes_on_from_the_turn_before():
    run, first, second = Run(), answer(), answer("Next.", "Hm!", "call_2", path="b.py")
    key = run.call(OPENING, first)
    request = [*OPENING, first, result()]
    run.index.add((2, 0), run.read(request).digest, second, None)
    read = run.read([*request, changed(second, reasoning_content=None), result("call_2")])
    assert (read.continued, read.continuation.covered) == (key, 2)
    assert read.messages[-2] == second
    assert read.answers == {key, (2, 0)}


def test_a_seal_tells_of_which_turn_a_rewritten_text_was_made():
    run = Run()
    run.call(OPENING, answer("One.", "A thought.", None), sealed=turn_name("r1", 0))
    sent = {**answer("Other.", "A thought.", None), SEALED_TURNS: [turn_name("r1", 0)]}
    read = run.read([*OPENING, sent, {"role": "user", "content": "And?"}])
    assert (read.continuation, read.rewrites) == (None, {((1, 0), "text")})
    assert SEALED_TURNS not in read.messages[2]


@pytest.mark.parametrize(
    ("text", "message", "quoted"),
    [
        (
            "A summary of all that was done.",
            "Before: A summary of all\nthat was done. Go on.",
            True,
        ),
        ("A title", "It has A title in it.", False),
        ("A title", " A title\n", True),
    ],
)
def test_an_answer_may_stand_in_a_message_of_others(text, message, quoted):
    run = Run()
    key = run.call(OPENING, answer(text, None, None))
    request = [{"role": "user", "content": message}]
    assert run.read(request).answers == ({key} if quoted else set())
    assert not run.read(request).answers  # Each message is looked through once.


def test_a_plan_may_stand_within_a_message_that_the_program_wrote_for_the_model():
    run = Run()
    key = run.call(OPENING, answer("1. Look at it. 2. Mend it. 3. Check.", None, None))
    plan = {
        "role": "assistant",
        "content": "This is the plan:\n1. Look at it. 2. Mend it. 3. Check.",
    }
    assert run.read([*OPENING, plan, {"role": "user", "content": "Go on."}]).answers == {key}


@st.composite
def programs(draw):
    """Steps of a program: each asks anew, goes on from an earlier request, or repeats one, and rewrites what it sends."""
    return [
        (draw(st.integers(0, 5)), draw(st.sampled_from([None, *NORMALISED, *REWRITTEN])))
        for _ in range(draw(st.integers(1, 8)))
    ]


@given(programs())
def test_ids_go_on_exactly_where_all_that_they_hold_is_in_the_request(steps):
    run = Run()
    # Each request with what its prompt shows: the answers in it as sampled, or as the program wrote them.
    requests = [(OPENING, OPENING)]
    for number, (back, rewrite) in enumerate(steps):
        messages, shown = requests[max(0, len(requests) - 1 - back)]
        sampled = answer(call=f"call_{number}")
        key = run.call(messages, sampled)
        changes, _ = {**NORMALISED, **REWRITTEN}.get(rewrite, ({}, set()))
        if rewrite == "a call more":
            changes = {"content": "Else."}
        sent = sampled if rewrite is None else changed(sampled, **changes)
        tail = result(f"call_{number}", f"done {number}")
        lasting = rewrite is None or rewrite in NORMALISED
        request = [*messages, sent, tail]
        read = run.read(request)
        # A second answer may show what the first one does, in the same conversation: either is right.
        if lasting:
            assert read.continued is not None
            assert run.ids[read.continued] == read.continuation.token_ids
            assert read.messages == [*shown, sampled, tail]
            assert read.continued == key
        else:
            assert read.continued != key
            assert read.messages[-2] == sent
        requests.append((request, read.messages))


@pytest.fixture(scope="module")
def chat():
    return format_of(template_folder("qwen3.5")).chat


@pytest.mark.parametrize("later", ["", "The clock was changed."])
def test_the_prompt_begins_with_the_ids_although_the_program_changed_what_it_sends(chat, later):
    """Also with a system message after the covered turn."""
    index, sampled = TurnIndex(), answer("I edit.", "It is wrong.")
    prompt = chat.render(OPENING, TOOLS)
    whole = chat.render_text([*OPENING, sampled], TOOLS, generation=False)
    begun = chat.render_text(OPENING, TOOLS)
    output = chat.encode_rendered(whole[len(begun) : chat.turn_end(whole)[1]])
    index.add((1, 0), index.read(OPENING, TOOLS).digest, sampled, [*prompt, *output])
    sent = changed(
        sampled, reasoning_content=None, arguments='{"all": false, "count": 2, "path": "a.py"}'
    )
    system = [{"role": "system", "content": later}] if later else []
    read = index.read([*OPENING, sent, result(), *system], TOOLS)
    ids = chat.extend(read.continuation, read.messages, TOOLS)
    assert ids[: len(prompt) + len(output)] == [*prompt, *output]
    tail = chat.decode(ids[len(prompt) + len(output) :])
    assert "done" in tail
    assert later in tail
