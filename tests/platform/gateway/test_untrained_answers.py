"""Side calls and superseded answers of a run are told from what its reward depends on."""

from datetime import UTC, datetime, timedelta

from hud_platform.gateway.untrained_answers import AnsweredCall, untrained_answers

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def call(number, conversation, *answers, tools=True, began=None, choices=1):
    began = number if began is None else began
    started = BEGIN + timedelta(seconds=began)
    return AnsweredCall(
        number=number,
        choices=choices,
        conversation=conversation,
        tools=tools,
        answers=frozenset((answer, 0) for answer in answers),
        started_at=started,
        ended_at=started + timedelta(seconds=0.5),
    )


def test_a_call_without_tools_that_nothing_came_of_is_a_side_call():
    title = call(2, "title", tools=False)
    summary = call(5, "page", tools=False)
    calls = [call(1, "a"), title, call(3, "b", 1), summary, call(6, "c", 1, 3, 5)]
    assert untrained_answers(calls) == {(2, 0): "side_call"}


def test_a_compaction_without_tools_holds_answers_and_is_none():
    calls = [call(1, "a"), call(2, "b", 1), call(3, "summary", 1, 2, tools=False)]
    assert untrained_answers(calls) == {}


def test_a_program_without_tools_has_no_side_calls():
    assert untrained_answers([call(1, "a", tools=False), call(2, "b", tools=False)]) == {}


def test_of_answers_to_one_prompt_those_that_were_continued_are_trained_on():
    calls = [call(1, "a"), call(2, "b", 1), call(3, "b", 1), call(4, "c", 1, 3)]
    assert untrained_answers(calls) == {(2, 0): "superseded"}
    choices = [call(1, "a", choices=3), call(2, "b", 1)]
    assert untrained_answers(choices) == dict.fromkeys([(1, 1), (1, 2)], "superseded")
    both = [*calls, call(5, "d", 1, 2)]
    assert untrained_answers(both) == {}


def test_of_answers_that_none_continued_the_one_that_was_asked_for_last_counts():
    again = [call(1, "a"), call(2, "b", 1), call(3, "b", 1)]
    assert untrained_answers(again) == {(2, 0): "superseded"}
    at_once = [call(1, "a"), call(2, "b", 1), call(3, "b", 1, began=2.1)]
    assert untrained_answers(at_once) == {}
