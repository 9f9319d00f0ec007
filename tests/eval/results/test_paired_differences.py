"""Two jobs compared task by task."""

from math import comb
from statistics import variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.eval.results.paired_differences import (
    SIGNIFICANCE,
    Difference,
    chance_of,
    fewest_units,
    holm,
    pair,
    rewards_by_attempt,
)
from hud.eval.results.run_summary import RunSummary

REWARDS = st.integers(0, 4).map(lambda quarters: quarters / 4)
GROUPS = st.lists(st.tuples(REWARDS, REWARDS, REWARDS, REWARDS), min_size=1, max_size=16)


def runs(**rewards):
    return rewards


def sides(groups):
    """Two sides of two runs for each task."""
    first = {f"t{place:02}": list(group[:2]) for place, group in enumerate(groups)}
    second = {f"t{place:02}": list(group[2:]) for place, group in enumerate(groups)}
    return first, second


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
    assert found.overall.low == pytest.approx(0.4)
    assert found.verdict == "better"
    assert pair(better, worse).verdict == "worse"
    assert pair(better, better).verdict == "noise"


def test_only_tasks_that_both_measured_are_compared():
    lost = RunSummary("lost", None, failure_kind="environment")
    first = {**runs(a=[1.0], old=[1.0]), **rewards_by_attempt([lost])}
    found = pair(first, runs(a=[1.0], new=[1.0], lost=[1.0]))
    assert [change.slug for change in found.changes] == ["a"]
    assert (found.only_before, found.only_after) == (("old",), ("new", "lost"))


def test_jobs_without_a_common_task_have_no_difference():
    found = pair(runs(a=[1.0]), runs(b=[1.0]))
    assert (found.changes, found.before, found.overall, found.verdict) == (
        (),
        None,
        None,
        None,
    )


def test_runs_are_paired_by_seed_and_one_that_was_not_measured_takes_its_pair_along():
    first = [RunSummary("a", reward, attempt=place) for place, reward in enumerate((0.0, 0.5, 1.0))]
    second = [RunSummary("a", reward, attempt=place) for place, reward in ((2, 1.0), (0, 0.25))]
    second.append(RunSummary("a", None, attempt=1, failure_kind="environment"))
    (change,) = pair(rewards_by_attempt(first), rewards_by_attempt(second)).changes
    assert change.by_seed == (0.25, 0.0)
    assert change.runs == (2, 2)


def test_fewer_than_six_tasks_are_judged_by_their_runs_and_five_units_by_nothing():
    few = {"a": [0.0] * 5, "b": [0.0] * 5}
    found = pair(few, {slug: [1.0] * 5 for slug in few}).overall
    assert (found.unit, found.units, found.verdict) == ("runs", 10, "better")
    five = {f"t{place}": [0.0] for place in range(fewest_units() - 1)}
    found = pair(five, {slug: [1.0] for slug in five}).overall
    assert (found.low, found.p_value, found.verdict) == (None, 1.0, "noise")


@pytest.mark.slow
@given(GROUPS)
def test_swapping_the_sides_mirrors_the_comparison(groups):
    first, second = sides(groups)
    found, mirrored = pair(first, second).overall, pair(second, first).overall
    assert mirrored.mean == pytest.approx(-found.mean)
    assert mirrored.p_value == pytest.approx(found.p_value)
    if found.low is not None:
        assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


@pytest.mark.slow
@given(GROUPS, st.randoms())
def test_the_order_of_tasks_changes_nothing(groups, random):
    first, second = sides(groups)
    order = list(first)
    random.shuffle(order)
    assert (
        pair(first, second).overall == pair({slug: first[slug] for slug in order}, second).overall
    )


@pytest.mark.slow
@given(GROUPS)
def test_interval_verdict_and_p_value_say_one_thing(groups):
    found = pair(*sides(groups)).overall
    assert 0 < found.p_value <= 1
    if found.low is None:
        assert found.p_value == 1
        return
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9
    assert (found.low > 0 or found.high < 0) == (found.p_value <= SIGNIFICANCE)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_s_correction_lowers_no_p_value_keeps_their_order_and_stays_below_bonferroni_s(values):
    adjusted = holm(values)
    for value, shown in zip(values, adjusted, strict=True):
        assert value <= shown <= min(1.0, len(values) * value) + 1e-12
    by_value = sorted(zip(values, adjusted, strict=True))
    assert [shown for _, shown in by_value] == sorted(adjusted)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_evidence_needed_shrinks_with_the_difference_s_square_and_more_runs_remove_only_their_noise():
    def difference(mean, noise):
        return Difference(
            "all tasks",
            *(20, 5, mean, -1.0, 1.0, 1.0, 1.0),
            unit="tasks",
            deviation=0.4,
            noise=noise,
            looks=1,
            identical=False,
        )

    half, whole = difference(0.1, 0.8).needed(), difference(0.2, 0.8).needed()
    assert half.tasks == pytest.approx(4 * whole.tasks, abs=4)
    assert whole.runs is not None, "the noise of runs, 0.8 / 5, is all of the variance, 0.4²"
    assert difference(0.1, 0.0).needed().runs is None, "tasks themselves differ"
    assert difference(0.0, 0.8).needed() is None
    assert whole.runs == pytest.approx(5 * whole.tasks / 20, abs=1)


def test_the_noise_is_that_of_pairs_within_a_task():
    found = pair({"a": [0.0, 0.0], "b": [0.0, 0.0]}, {"a": [0.0, 1.0], "b": [1.0, 1.0]}).overall
    assert found.noise == pytest.approx((variance([0.0, 1.0]) + 0) / 2)
