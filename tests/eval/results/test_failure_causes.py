"""Failures by cause, and where in the user's code they are."""

import json

from hud.errors import located
from hud.eval.results.failure_causes import FailedRun, cause_of, causes


def failed(error, kind="grader", slug="a"):
    return FailedRun(kind, error, slug, f"trace of {slug}")


def test_failures_that_differ_in_numbers_and_ids_are_one_cause():
    found = causes(
        [
            failed("Timeout after 30 s", "environment"),
            failed("no row 7 at 0x7f (tasks.py:9)", slug="a"),
            failed("no row 8 at 0x80 (tasks.py:9)", slug="b"),
        ]
    )
    assert [(one.kind, len(one.runs), one.tasks) for one in found] == [
        ("grader", 2, 2),
        ("environment", 1, 1),
    ]
    assert found[0].error == "no row 7 at 0x7f (tasks.py:9)"


def test_two_places_are_two_causes_and_so_are_two_kinds():
    assert cause_of("KeyError: 'x' (tasks.py:9)") != cause_of("KeyError: 'x' (tasks.py:10)")
    assert len(causes([failed("x"), failed("x", "agent")])) == 2
    assert causes([failed(None)])[0].error == "No reason is recorded."


def test_an_exception_is_located_in_the_users_code_not_in_a_librarys():
    try:
        json.loads("no")
    except ValueError as error:
        told = located(error)
    assert told.startswith("JSONDecodeError: Expecting value: line 1 column 1 (char 0) (")
    assert told.endswith("tests/eval/results/test_failure_causes.py:36)")
