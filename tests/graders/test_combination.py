"""Combining subscores: the sum, the penalties, and the tree that is kept."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hud.environment import Environment
from hud.errors import GraderFault, UsageError
from hud.eval.rollouts import rollout
from hud.graders import (
    BashGrader,
    EvaluationResult,
    Grader,
    SubScore,
    combine,
    combine_all,
    combine_any,
    gate,
)
from hud.trace.recording.recorder import NullRecorder


def part(value, weight=1.0, name="part"):
    return SubScore(name=name, value=value, weight=weight)


async def test_positive_weights_are_normalized():
    result = await combine(part(1.0, 3.0, "a"), part(0.0, 1.0, "b"))
    assert result.reward == 0.75
    assert [(one.name, one.value, one.weight) for one in result.subscores] == [
        ("a", 1.0, 3.0),
        ("b", 0.0, 1.0),
    ]
    assert (await combine(part(0.5, 100.0))).reward == 0.5


async def test_penalties_take_away_on_top_and_stop_at_zero():
    assert (await combine(part(1.0), part(0.5, -0.4))).reward == pytest.approx(0.8)
    assert (await combine(part(0.2), part(1.0, -0.4))).reward == 0.0
    assert (await combine(part(1.0), part(0.0, -5.0))).reward == 1.0


async def test_a_penalty_below_zero_pays_nothing():
    assert (await combine(part(0.5), part(-5.0, -1.0))).reward == 0.5


async def test_exact_weights_give_an_exact_mean():
    parts = SubScore(name="right", value=1.0, weight=3.0), SubScore(name="short", value=0.5)
    assert (await combine(*parts)).reward == 0.875


async def test_weights_of_any_size_give_a_mean():
    assert (await combine(part(0.0, 1e308), part(1.0, 1e308))).reward == pytest.approx(0.5)


async def test_nothing_to_combine_is_refused():
    with pytest.raises(UsageError, match="nothing to combine"):
        await combine()
    with pytest.raises(UsageError, match="positive weight"):
        await combine(part(1.0, -1.0))
    with pytest.raises(UsageError, match="positive weight"):
        await combine(part(1.0, 0.0))
    for function in (combine_any, combine_all):
        with pytest.raises(UsageError, match="nothing to combine"):
            await function(1.0, [])


async def test_parts_that_are_still_computing_run_side_by_side_and_keep_their_order():
    together = asyncio.Event()
    waiting = 0

    class Meets(Grader):
        async def compute_score(self, *, of):
            nonlocal waiting
            waiting += 1
            if waiting == of:
                together.set()
            await asyncio.wait_for(together.wait(), 10)
            return 1.0

    result = await combine(
        Meets.grade(name="first", of=3),
        part(0.0, name="ready"),
        Meets.grade(name="second", of=3),
        Meets.grade(of=3),
    )
    assert [one.name for one in result.subscores] == ["first", "ready", "second", "Meets"]
    assert result.reward == 0.75


async def test_any_is_the_best_and_all_is_the_worst():
    parts = [part(0.2, name="a"), part(0.9, name="b")]
    best = await combine_any(2.0, parts, name="either")
    worst = await combine_all(1.0, parts)
    assert (best.name, best.value, best.weight) == ("either", 0.9, 2.0)
    assert (worst.name, worst.value, worst.weight) == ("all", 0.2, 1.0)
    assert [child.name for child in best.children] == ["a", "b"]


async def test_trees_nest_and_reach_the_trace_whole():
    env = Environment("tree")

    @env.template()
    async def task():
        answer = yield "?"
        result = await combine(
            combine_any(0.5, [part(0.0, name="plan"), combine_all(1.0, [part(1.0, name="x")])]),
            part(float(answer == "right"), 0.5, "outcome"),
            part(1.0, -0.25, "too long"),
        )
        yield gate(result, outcome=1.0)

    async def agent(run):
        run.trace.content = "right"

    run = await rollout(task(), agent, runtime=lambda _: env.run(), recorder=NullRecorder())
    assert run.reward == 0.75
    tree = run.grade.subscores
    assert [one["name"] for one in tree] == ["any", "outcome", "too long", "gate"]
    assert tree[0]["children"][1]["children"][0]["name"] == "x"
    assert run.trace.steps[-1].task_call.result["subscores"] == tree


async def test_equal_names_are_told_apart():
    result = await combine(part(1.0), part(0.0), part(0.5))
    assert [one.name for one in result.subscores] == ["part", "part-2", "part-3"]


async def test_one_subscore_may_be_used_in_two_places():
    shared = part(1.0, name="tests")
    result = await combine(combine_any(1.0, [shared, part(0.0, name="tests")]), shared)
    assert shared.name == "tests"
    assert [one.name for one in result.subscores] == ["any", "tests"]
    twice = await combine(shared, shared)
    assert [one.name for one in twice.subscores] == ["tests", "tests-2"]


@pytest.mark.parametrize(
    "options",
    [
        {"value": math.nan},
        {"value": math.inf},
        {"value": 1.5},
        {"value": 0.5, "weight": math.nan},
        {"value": 0.5, "weight": math.inf},
    ],
)
def test_subscores_that_are_no_scores_are_refused(options):
    with pytest.raises(ValidationError):
        SubScore(name="x", **options)


async def test_a_grader_that_scores_nan_fails_the_grade_rather_than_hiding_in_a_maximum():
    env = Environment("nan")

    class Broken(Grader):
        async def compute_score(self):
            return math.nan

    @env.template()
    async def task():
        yield "?"
        yield await combine(combine_any(1.0, [part(0.5), Broken.grade()]))

    async with env.run() as run:
        await run.start("task", {})
        with pytest.raises(GraderFault):
            await run.grade("", None)


async def test_a_part_that_raises_ends_the_others(tmp_path):
    class Raises(Grader):
        async def compute_score(self):
            await asyncio.sleep(0.05)
            raise GraderFault("the judge is down")

    marker = tmp_path / "late"
    slow = BashGrader.grade(command=f"sleep 0.6; touch {marker}")
    with pytest.raises(GraderFault, match="the judge is down"):
        await combine(slow, Raises.grade())
    await asyncio.sleep(0.8)
    assert not marker.exists()


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 10)), min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(0, 1), st.floats(-10, -0.01)), max_size=4),
)
def test_a_combination_is_always_a_reward_and_penalties_never_help(gains, penalties):
    async def both():
        plain = await combine(*(part(value, weight) for value, weight in gains))
        punished = await combine(*(part(value, weight) for value, weight in [*gains, *penalties]))
        return plain.reward, punished.reward

    plain, punished = asyncio.run(both())
    assert 0.0 <= punished <= plain <= 1.0
    values = [value for value, _ in gains]
    assert min(values) - 1e-9 <= plain <= max(values) + 1e-9


def test_results_speak_both_spellings():
    failed = EvaluationResult(reward=0.0, isError=True, content="no judge", confidence=0.5)
    assert failed.is_error
    assert failed.isError
    assert failed.model_dump()["isError"] is True
    assert failed.confidence == 0.5
    assert EvaluationResult(is_error=True) == EvaluationResult(isError=True)
    assert float(EvaluationResult(reward=0.5)) == 0.5
    assert float(SubScore(name="x", value=0.25)) == 0.25


async def test_a_result_that_says_it_failed_is_the_graders_fault_and_no_reward():
    env = Environment("failing")

    @env.template()
    async def task():
        yield "?"
        yield EvaluationResult(reward=0.0, isError=True, content="The judge is down.")

    async def agent(run):
        run.trace.content = "x"

    run = await rollout(task(), agent, runtime=lambda _: env.run(), recorder=NullRecorder())
    assert (run.failure_kind, run.reward) == ("grader", None)
    assert run.error == "The judge is down."
