"""One task has one identity: default arguments, coerced values, key order and forms of text do not change it."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from hud.environment import Environment, Task, Taskset


class Spec(BaseModel):
    size: int
    mode: str = "fast"


NOBODY = SecretStr("a")
env = Environment("letters")


@env.template()
async def count(
    word: str, letter: str = "r", limit: int = 3, share: float = 0.5, loud: bool = False
):
    yield f"{word} {letter} {limit} {share} {loud}"
    yield 1.0


@env.template()
async def build(spec: Spec, tags: frozenset[str] = frozenset()):
    yield f"{spec} {tags}"
    yield 1.0


@env.template()
async def free(value: Any = 1):
    yield f"{value}"
    yield 1.0


@env.template()
async def enter(password: SecretStr = NOBODY):
    yield f"{password}"
    yield 1.0


EQUAL = [
    (count("straw"), count("straw", letter="r")),
    (count("straw"), count(letter="r", word="straw", limit=3)),
    (count("straw", limit=7), count("straw", limit="7")),
    (count("straw", limit=7), count("straw", limit=7.0)),
    (count("straw", share=2), count("straw", share=2.0)),
    (count("straw", loud=1), count("straw", loud=True)),
    (count("straw", limit=True), count("straw", limit=1)),
    (free(), free(1)),
    (free({"a": 1, "b": 2.0}), free({"b": 2, "a": 1})),
]


@pytest.mark.parametrize(("first", "second"), EQUAL, ids=lambda task: repr(task.args))
def test_forms_of_the_same_task_have_the_same_keys_and_slug(first, second):
    assert first.identity.same(second.identity)
    assert first.slug == second.slug


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (build({"size": 2}), build({"size": 2, "mode": "fast"})),
        (build({"size": 2}), build(Spec(size=2))),
        (build({"size": 2}, ["b", "a"]), build({"size": 2}, ["a", "b"])),
        (count(unicodedata.normalize("NFC", "é")), count(unicodedata.normalize("NFD", "é"))),
    ],
    ids=lambda task: repr(task.args),
)
def test_nested_defaults_sets_and_forms_of_text_do_not_change_the_keys(first, second):
    assert first.identity.same(second.identity)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (count("straw"), count("straw", letter="s")),
        (free(1), free(True)),
        (free(1), free("1")),
        (free(None), free()),
        (build({"size": 2}), build({"size": 2, "mode": "slow"})),
        (enter("b"), enter("c")),
        (count("r"), count("r", letter="R")),
    ],
    ids=lambda task: repr(task.args),
)
def test_other_arguments_are_another_task(first, second):
    assert not first.identity.same(second.identity)
    assert first.slug != second.slug


def test_an_explicit_default_is_still_passed_to_the_template():
    assert count("straw", letter="r").args == {"word": "straw", "letter": "r"}
    assert count("straw").args == {"word": "straw"}


def test_the_label_of_a_task_names_its_arguments():
    assert count("straw", letter="r").label == "count(word='straw', letter='r')"
    assert free(1).label == "free"


def test_a_taskset_numbers_forms_of_the_same_task():
    tasks = Taskset("t", [count("straw"), count("straw", letter="r"), count("straw", "s")])
    slug = count("straw").slug
    assert [task.slug for task in tasks] == [slug, f"{slug}-2", count("straw", "s").slug]


def test_rows_beside_their_environment_have_the_same_keys(tmp_path):
    (tmp_path / "env.py").write_text(
        "from hud.environment import Environment\n"
        "env = Environment('letters')\n\n"
        "@env.template()\n"
        "async def count(word: str, letter: str = 'r'):\n"
        "    yield word\n"
        "    yield 1.0\n"
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"env": "letters", "id": "count", "args": {"word": "straw", "letter": "r"}}\n'
        '{"env": "letters", "id": "count", "args": {"word": "straw"}, "slug": "own"}\n'
    )
    explicit, short = Taskset.from_file(rows)
    assert explicit.identity.same(short.identity)
    assert explicit.slug == count("straw").slug


ALL = {"word": "straw", "letter": "r", "limit": 3, "share": 0.5, "loud": False}


@pytest.mark.parametrize("args", [{"word": "straw"}, ALL])
def test_a_row_without_its_environment_is_the_task_that_was_made_with_it(args):
    row = Task(env="letters", id="count", args=args)
    assert row.identity.same(count("straw").identity)
    assert row.identity.same(count("straw", letter="r").identity)


def test_arguments_that_the_template_refuses_are_compared_as_they_are():
    row = Task(env="letters", id="count", args={"ward": "straw"}).bind(env)
    assert row.identity == Task(env="letters", id="count", args={"ward": "straw"}).identity


def row(**args):
    """A task of a row without its environment: its defaults are unknown."""
    return Task(env="letters", id="count", args=args).identity


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (row(word="straw"), row(word="straw", letter="r")),
        (row(word="straw", letter="r"), row(word="straw", limit=3)),
        (row(), row(word="straw")),
        (row(word="straw", letter="r"), count("straw").identity),
        (row(word="straw", limit=3, loud=False), count("straw", letter="r").identity),
        (row(word="straw", letter="s", limit=3), count("straw", "s").identity),
        (row(word="straw", limit=7.0), count("straw", limit="7").identity),
    ],
    ids=str,
)
def test_rows_that_leave_out_different_arguments_may_be_one_task(first, second):
    """Neither says what the defaults are: held-out evidence must not be a trained task."""
    assert first.same(second)
    assert second.same(first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (row(word="straw"), row(word="berry", letter="r")),
        (row(word="straw", letter="r"), row(word="straw", letter="s", limit=3)),
        (row(word="straw", letter="s"), count("straw").identity),
        (row(word="straw", limit=3), count("straw", letter="s").identity),
        (row(word="straw"), count("straw", "s").identity),
        (row(word="straw"), count("straw", "s", 9, 0.1, True).identity),
        (row(word="straw", other=1), count("straw").identity),
        (row(word="straw"), Task(env="letters", id="free", args={"word": "straw"}).identity),
    ],
    ids=str,
)
def test_rows_that_name_another_value_are_other_tasks(first, second):
    assert not first.same(second)
    assert not second.same(first)
