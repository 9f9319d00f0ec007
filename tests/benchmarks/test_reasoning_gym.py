"""`reasoning-gym/NAME`: generated questions, scored by the package behind checks of what it would execute."""

from __future__ import annotations

import asyncio

import pytest
from tests.benchmarks.played import NOTHING, installed, rewards

from hud.agents import ScriptedAgent
from hud.benchmarks import SPLITS
from hud.eval import NullRecorder
from hud_benchmarks.reasoning_gym.expressions import is_arithmetic, is_expression, is_plain
from hud_benchmarks.reasoning_gym.generators import GENERATORS, LEFT_OUT

SAMPLE = [
    "acre", "bf", "chain_sum", "coin_flip", "countdown", "maze", "simple_integration", "spiral_matrix",
    "string_insertion", "string_splitting", "tower_of_hanoi", "word_sorting",
]  # fmt: skip
EVALUATED = [
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
    "simple_integration", "spiral_matrix", "string_insertion",
]  # fmt: skip
SLOWEST = ["countdown", "knight_swap", "puzzle24"]
"""Generators that take minutes for all their train items."""


@pytest.fixture(autouse=True)
def package():
    return installed("reasoning-gym/chain_sum").package


def tasks(generator, split="held-out", most=None):
    found = installed(f"reasoning-gym/{generator}").tasks(split)
    return found.filter([task.slug for task in found][:most])


async def scored(generator, answer):
    """Reward of an answer to the first task, and what the grader said of it."""
    job = await tasks(generator, most=1).run(
        ScriptedAgent(lambda run: answer), recorder=NullRecorder()
    )
    return job.runs[0].reward, job.runs[0].grade.content


@pytest.mark.slow
def test_every_generator_of_the_package_is_shipped_or_left_out_by_name():
    from reasoning_gym.factory import DATASETS

    assert GENERATORS.keys() | LEFT_OUT.keys() == DATASETS.keys()
    assert not GENERATORS.keys() & LEFT_OUT.keys()
    assert (len(GENERATORS), len(LEFT_OUT)) == (99, 7)


@pytest.mark.parametrize("name", sorted(LEFT_OUT.keys() - {"codeio", "composite"}))
def test_what_is_left_out_has_no_stored_answer(name):
    import reasoning_gym

    assert reasoning_gym.create_dataset(name, seed=0, size=1)[0]["answer"] is None


@pytest.mark.parametrize("generator", SAMPLE)
async def test_a_sample_of_stored_answers_scores_1_and_no_answer_0(generator):
    some = tasks(generator, most=4)
    assert set(
        (await rewards(some, installed(f"reasoning-gym/{generator}").oracle())).values()
    ) == {1.0}
    assert set((await rewards(some, NOTHING)).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("generator", GENERATORS)
async def test_every_stored_answer_scores_1_and_no_answer_0(generator):
    oracle = installed(f"reasoning-gym/{generator}").oracle()
    for split in SPLITS:
        found = tasks(generator, split, most=100 if generator in SLOWEST else None)
        assert {k: v for k, v in (await rewards(found, oracle)).items() if v != 1.0} == {}
    assert {k: v for k, v in (await rewards(found, NOTHING)).items() if v != 0.0} == {}
    _no_question_is_on_both_sides(generator)


@pytest.mark.slow
@pytest.mark.parametrize("generator", SAMPLE)
def test_no_held_out_question_is_asked_in_training(generator):
    _no_question_is_on_both_sides(generator)


def _no_question_is_on_both_sides(generator):
    from hud_benchmarks.reasoning_gym.items import item

    most = 100 if generator in SLOWEST else None
    train, held_out = (
        [item(**task.args)["question"] for task in tasks(generator, split, most)]
        for split in SPLITS
    )
    assert not set(train) & set(held_out)
    assert len(set(held_out)) == len(held_out) > 0


@pytest.mark.parametrize("generator", ["chain_sum", "tower_of_hanoi"])
async def test_left_out_items_are_those_that_the_file_names(generator):
    from hud_benchmarks.reasoning_gym.generators import ITEMS, indices
    from hud_benchmarks.reasoning_gym.left_out_items import left_out

    found = await left_out(generator)
    assert {
        split: sorted({*range(ITEMS[split])} - {*indices(generator, split)}) for split in SPLITS
    } == found


@pytest.mark.slow
def test_a_task_is_the_same_in_every_process():
    from hud_benchmarks.reasoning_gym import items

    first = items.item("zebra_puzzles", "train", 3)
    items.item.cache_clear()
    items.data_set.cache_clear()
    assert items.item("zebra_puzzles", "train", 3) == first


async def test_an_answer_may_stand_in_tags_at_the_end_of_other_words():
    from hud_benchmarks.reasoning_gym.items import item

    right = item(**tasks("chain_sum", most=1)[0].args)["answer"]
    assert await scored("chain_sum", right) == (1.0, None)
    said = f"<answer>1</answer>, no: <answer>{right}</answer>"
    assert await scored("chain_sum", said) == (1.0, None)
    assert await scored("chain_sum", f"{right}, no: <answer>x</answer>") == (0.0, None)


@pytest.mark.parametrize("generator", EVALUATED)
@pytest.mark.parametrize(
    "attack",
    [
        "__import__('pathlib').Path('made').touch()",
        "[__import__('pathlib').Path('made').touch()]",
        "exec(chr(111)+chr(112)+chr(101)+chr(110))",
        "(lambda: open('made', 'w'))()",
        "9**9**9**9",
        'f\'{open("made", "w")}\'',
    ],
)
async def test_an_answer_is_never_executed(generator, attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reward, reason = await scored(generator, attack)
    assert (reward, list(tmp_path.iterdir())) == (0.0, [])
    assert "form that was asked for" in reason


@pytest.mark.parametrize(
    ("generator", "answer"),
    [
        ("puzzle24", "6 + 6 + 6 + 6"),
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "nan + nanj"),
        ("sokoban", "Up? DURR."),
        ("simple_integration", "Integral(x, x)"),
        ("intermediate_integration", "Integral(x*sin(x), x) + C"),
    ],
)
async def test_what_the_packages_scorer_takes_without_the_work_scores_0(generator, answer):
    assert (await scored(generator, answer))[0] == 0.0


@pytest.mark.parametrize(
    "answer", ["1e9999999", "-1.5E+9999999", "1e1_000_000_0", "1e\uff19999999", "1/2 or 1e-9999999"]
)
@pytest.mark.parametrize("generator", ["coin_flip", "decimal_arithmetic", "power_function"])
async def test_a_number_that_cannot_be_computed_is_a_wrong_answer(generator, answer):
    """The package makes an exact fraction of it, which held all runs of the process."""
    from hud_benchmarks.reasoning_gym.scoring import score

    async with asyncio.timeout(10):
        assert (await score(generator, "train", 0, answer))[0] == 0.0


async def test_an_answer_without_end_is_a_wrong_one():
    from hud_benchmarks.reasoning_gym.scoring import score

    assert (await score("coin_flip", "train", 0, "0" * 1_000_000))[0] == 0.0


async def test_a_wrong_answer_is_worth_nothing_and_the_packages_score_is_kept():
    from hud_benchmarks.reasoning_gym.items import item

    right = item(**tasks("string_insertion", most=1)[0].args)["answer"]
    job = await tasks("string_insertion", most=1).run(
        ScriptedAgent(lambda run: repr(list(right))), recorder=NullRecorder()
    )
    assert job.runs[0].reward == 0.0
    assert job.runs[0].grade.info == {"package_score": pytest.approx(0.1)}


async def test_a_board_halts_or_does_not_and_other_words_say_neither():
    from hud_benchmarks.reasoning_gym.items import item

    right = item(**tasks("game_of_life_halting", most=1)[0].args)["answer"]
    assert (await scored("game_of_life_halting", right.lower()))[0] == 1.0
    for wrong in ("perhaps", "True" if right == "False" else "False"):
        assert (await scored("game_of_life_halting", wrong))[0] == 0.0


def test_tasks_with_few_answers_declare_their_chance_level():
    from hud_benchmarks.reasoning_gym.chance_levels import LEAST, chance_level
    from hud_benchmarks.reasoning_gym.generators import chance_levels

    assert tasks("ransom_note", most=1)[0].columns == {"chance": chance_level("ransom_note")}
    assert tasks("chain_sum", most=1)[0].columns is None
    assert chance_levels().keys() <= GENERATORS.keys()
    assert all(LEAST < level < 1 for level in chance_levels().values())


@pytest.mark.parametrize(
    ("text", "plain", "arithmetic", "expression"),
    [
        ("1 2 3", True, False, False),
        ("[1, 'a']", True, False, False),
        ("ABBA", True, False, False),
        ("8 + (1 - 6/9)*-2", False, True, True),
        ("24", True, True, True),
        ("x**3*cos(x) - 3*x**2 + C", False, False, True),
        ("(x**2 + 1)**3", False, False, True),
        ("((x**2)**2)**2", False, False, False),
        ("x**(50*50)", False, False, False),
        ("10**13", False, False, True),
        ("10000000000000", True, False, False),
        ("sin.func", False, False, False),
        ("sin(x, evaluate=x)", False, False, False),
        ("eval(x)", False, False, False),
        ("'a' * 9", False, False, False),
        ("True", True, False, False),
        ("x if x else x", False, False, False),
        ("(" * 900 + ")" * 900, True, False, False),
        ("-" * 1999 + "x", False, False, False),
    ],
)  # fmt: skip
def test_forms_of_answers(text, plain, arithmetic, expression):
    assert (is_plain(text), is_arithmetic(text), is_expression(text)) == (
        plain,
        arithmetic,
        expression,
    )
