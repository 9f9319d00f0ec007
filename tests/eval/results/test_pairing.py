"""Two jobs compared task by task."""

from math import comb

import pytest

from hud.eval.results.pairing import chance_of, pair
from hud.eval.results.run_summary import RunSummary


def runs(**rewards):
    return [RunSummary(slug, reward) for slug, group in rewards.items() for reward in group]


def test_a_task_changed_where_chance_hardly_explains_it():
    found = pair(
        runs(up=[0.0] * 5, down=[1.0] * 5, same=[0.0, 1.0, 0.0, 1.0, 0.0]),
        runs(up=[1.0] * 5, down=[0.0] * 5, same=[1.0, 0.0, 1.0, 0.0, 1.0]),
    )
    assert [change.verdict for change in found.changes] == ["better", "worse", "noise"]
    assert [change.difference for change in found.changes] == pytest.approx([1.0, -1.0, 0.2])
    assert found.changes[0].runs == (5, 5)


def test_the_chance_is_that_of_the_permutation_test():
    # Of all ways to deal out eight runs, two keep all four passes together.
    assert chance_of((0.0,) * 4, (1.0,) * 4) == pytest.approx(2 / comb(8, 4))
    assert chance_of((0.0, 1.0), (0.0, 1.0)) == 1.0
    assert chance_of((0.0,), (1.0,)) == 1.0


def test_groups_too_large_to_try_every_way_are_drawn_and_the_same_each_time():
    chance = chance_of((0.0,) * 30, (1.0,) * 30)
    assert 0 < chance < 0.001
    assert chance == chance_of((0.0,) * 30, (1.0,) * 30)
    assert chance_of((0.0,) * 15 + (1.0,) * 15, (0.0,) * 14 + (1.0,) * 16) > 0.5


def test_with_one_run_a_side_nothing_is_more_than_noise():
    found = pair(runs(a=[0.0], b=[0.0]), runs(a=[1.0], b=[1.0]))
    assert {change.verdict for change in found.changes} == {"noise"}


def test_the_whole_is_better_where_the_interval_over_tasks_says_so():
    tasks = "abcdefgh"
    worse, better = (runs(**{task: [reward] * 2 for task in tasks}) for reward in (0.2, 0.6))
    found = pair(worse, better)
    assert (found.before, found.after) == (pytest.approx(0.2), pytest.approx(0.6))
    assert found.difference.low == pytest.approx(0.4)
    assert found.verdict == "better"
    assert pair(better, worse).verdict == "worse"
    assert pair(better, better).verdict == "noise"


def test_only_tasks_that_both_measured_are_compared():
    lost = RunSummary("lost", None, failure_kind="environment")
    found = pair([*runs(a=[1.0], old=[1.0]), lost], runs(a=[1.0], new=[1.0], lost=[1.0]))
    assert [change.slug for change in found.changes] == ["a"]
    assert (found.only_before, found.only_after) == (("old",), ("new", "lost"))


def test_jobs_without_a_common_task_have_no_difference():
    found = pair(runs(a=[1.0]), runs(b=[1.0]))
    assert (found.changes, found.before, found.difference, found.verdict) == (
        (),
        None,
        None,
        None,
    )
