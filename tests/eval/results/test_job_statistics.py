"""Statistics: what they promise for any rewards."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.cli.evaluation.report import figures
from hud.eval.results.intervals import (
    TaskRewards,
    bounds,
    clustered_interval,
    interval_of_sums,
    with_interval,
)
from hud.eval.results.job_statistics import (
    ModelPrice,
    job_statistics,
    pass_at_k,
    pass_hat_k,
    percentiles,
    run_cost,
)
from hud.eval.results.run_summary import RunSummary

rewards = st.floats(0.0, 1.0, allow_nan=False)
clusters = st.lists(st.lists(rewards, min_size=1, max_size=5), min_size=2, max_size=12)


def runs_of(groups: dict[str, list[float | None]]) -> list[RunSummary]:
    return [
        RunSummary(slug=slug, reward=reward, group_id=slug, attempt=attempt)
        for slug, group in groups.items()
        for attempt, reward in enumerate(group)
    ]


@given(clusters)
@settings(max_examples=40, deadline=None)
def test_the_interval_holds_the_mean_lies_within_the_scale_and_is_the_same_each_time(groups):
    interval = clustered_interval(groups)
    assert interval == clustered_interval(groups)
    mean = np.mean([reward for group in groups for reward in group])
    assert 0.0 <= interval.low <= mean + 1e-9
    assert mean - 1e-9 <= interval.high <= 1.0


@given(st.lists(rewards, min_size=2, max_size=12).filter(lambda given: np.ptp(given) > 1e-3))
@settings(max_examples=20, deadline=None)
def test_repeating_the_run_of_each_task_leaves_the_interval_as_it_was(outcomes):
    """Clustering: eight copies of one outcome are one observation of a task, not eight."""
    once = clustered_interval([[reward] for reward in outcomes])
    eightfold = clustered_interval([[reward] * 8 for reward in outcomes])
    assert eightfold.low == pytest.approx(once.low)
    assert eightfold.high == pytest.approx(once.high)


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        difficulty = rng.beta(2, 2, size=60)
        groups = [list(rng.binomial(1, p, size=4).astype(float)) for p in difficulty]
        interval = clustered_interval(groups)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.88 <= covered / 200 <= 0.995


@pytest.mark.slow
@given(clusters, st.randoms())
@settings(max_examples=30, deadline=None)
def test_the_order_of_tasks_and_of_their_runs_does_not_move_the_interval(groups, random):
    found = clustered_interval(groups)
    shuffled = [random.sample(group, len(group)) for group in random.sample(groups, len(groups))]
    assert clustered_interval(shuffled) == found
    assert interval_of_sums([TaskRewards.of(group) for group in groups]) == found


def test_an_asymmetric_interval_is_shown_by_its_ends():
    assert with_interval(0.19, 0.0, 0.571) == "0.190 [0.000, 0.571]"
    assert with_interval(0.031, -0.01, 0.072, signed=True) == "+0.031 [-0.010, +0.072]"
    assert with_interval(0.5, None, None) == "0.500"
    assert with_interval(None, None, None) == "–"
    assert bounds(None, None) == ""
    found = clustered_interval([[0.0], [0.0], [0.0], [0.0], [0.0], [1.0]])
    assert 0.167 - found.low < found.high - 0.167, "the mean is not in the middle"


@pytest.mark.parametrize("tasks", [3, 4, 5])
def test_intervals_of_few_tasks_cover_the_true_mean_as_often_as_they_say(tasks):
    rng = np.random.default_rng(tasks)
    covered = 0
    for _ in range(400):
        chances = rng.beta(2, 2, size=tasks)
        interval = clustered_interval(rng.binomial(1, chances, size=(4, tasks)).T.tolist())
        covered += interval.low <= 0.5 <= interval.high
    assert covered / 400 >= 0.94


def test_tasks_that_are_alike_by_chance_do_not_make_the_interval_narrower_than_independent_runs():
    groups = [[1.0] * 19 + [0.0] * 21] * 12
    interval = clustered_interval(groups)
    reach = 1.96 * (0.475 * 0.525 / 480) ** 0.5
    assert interval.low == pytest.approx(0.475 - reach, abs=0.001)
    assert interval.high == pytest.approx(0.475 + reach, abs=0.001)


def test_rewards_that_are_all_at_an_end_leave_room_for_the_other():
    failed = clustered_interval([[0.0] * 40] * 4)
    passed = clustered_interval([[1.0] * 40] * 4)
    assert (failed.low, passed.high) == (0.0, 1.0)
    assert failed.high == pytest.approx(1.0 - passed.low)
    assert 0.05 < failed.high < 0.1


@pytest.mark.parametrize("tasks", [2, 3, 8, 50])
@given(reward=st.floats(0.0, 1.0), tiny=st.sampled_from([0.0, 1e-14]))
@settings(max_examples=30, deadline=None)
def test_equal_rewards_leave_room_for_others(tasks, reward, tiny):
    """As at an end of the range: the share of runs with another reward is bounded, and no mean is certain."""
    groups = [[reward, reward + tiny]] * tasks
    interval = clustered_interval(groups)
    share = clustered_interval([[0.0, 0.0]] * tasks).high
    assert interval.low == pytest.approx(reward * (1 - share), abs=1e-9)
    assert interval.high == pytest.approx(reward + (1 - reward) * share, abs=1e-9)
    assert interval_of_sums([TaskRewards.of(group) for group in groups]) == interval


@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_the_interval_of_rewards_that_are_mostly_equal_covers_the_true_mean(rest):
    """One run in twenty earns another reward: most samples of 16 tasks have it, and many do not."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        rewards = np.where(rng.random((16, 1)) < 0.05, rest, 0.5)
        interval = clustered_interval(rewards.tolist())
        covered += interval.low <= 0.95 * 0.5 + 0.05 * rest <= interval.high
    assert covered / 400 >= 0.95


def test_rewards_beyond_one_widen_the_scale():
    found = clustered_interval([[5.0, -1.0], [3.0], [2.0]])
    assert -1.0 <= found.low < 2.25 < found.high <= 5.0


def test_no_interval_from_a_single_task():
    assert clustered_interval([[0.0, 1.0, 1.0]]) is None
    assert clustered_interval([]) is None


@pytest.mark.slow
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
@settings(max_examples=60, deadline=None)
def test_pass_at_k_and_pass_hat_k_are_the_averages_over_all_choices_of_k_runs(passes, data):
    k = data.draw(st.integers(1, len(passes)))
    choices = list(combinations(passes, k))
    n, c = len(passes), sum(passes)
    assert pass_at_k(n, c, k) == pytest.approx(np.mean([any(chosen) for chosen in choices]))
    assert pass_hat_k(n, c, k) == pytest.approx(np.mean([all(chosen) for chosen in choices]))


def test_unmeasured_runs_enter_no_mean_and_no_group():
    runs = runs_of({"a": [1.0, 0.0], "b": [1.0]})
    runs.append(RunSummary(slug="a", reward=None, group_id="a", failure_kind="environment"))
    runs.append(RunSummary(slug="b", reward=0.0, group_id="b", failure_kind="agent"))
    statistics = job_statistics(runs)
    assert statistics.runs == 5
    assert statistics.measured == 4
    assert statistics.mean_reward == 0.5
    assert statistics.failures == {"environment": 1, "agent": 1}


def test_tasks_without_signal_are_named():
    statistics = job_statistics(
        runs_of({"easy": [1.0, 1.0], "hard": [0.0, 0.0], "useful": [0.0, 1.0], "lone": [0.0]})
    )
    assert statistics.always_passed == ["easy"]
    assert statistics.never_passed == ["hard"]
    assert statistics.no_signal == ["easy", "hard"]
    assert statistics.group_spread == pytest.approx(0.5 / 3)
    assert statistics.pass_at_k == {1: pytest.approx(1.5 / 4), 2: pytest.approx(2 / 3)}
    assert statistics.pass_hat_k[2] == pytest.approx(1 / 3)


def test_pass_at_k_says_over_how_many_tasks_it_is_averaged():
    whole = {"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [0.0, None], "d": [None, None]}
    statistics = job_statistics(runs_of(whole))
    assert statistics.tasks_with_k == {1: 3, 2: 2}
    assert statistics.over_tasks(1) == " (3 of 4 tasks)"
    assert statistics.over_tasks(2) == " (2 of 4 tasks)"
    assert dict(figures(statistics, 2))["pass@k"] == (
        "k=1: 0.167 (3 of 4 tasks)  k=2: 0.500 (2 of 4 tasks)"
    )
    assert "pass@2" in statistics._repr_html_()
    assert "0.500 (2 of 4 tasks)" in statistics._repr_html_()
    assert job_statistics(runs_of({"a": [1.0, 0.0], "b": [0.0, 0.0]})).over_tasks(2) == ""


def test_nothing_measured_gives_nothing_rather_than_zero():
    statistics = job_statistics([RunSummary(slug="a", reward=None, failure_kind="infrastructure")])
    assert statistics.mean_reward is None
    assert statistics.interval is None
    assert statistics.pass_at_k == {}
    assert job_statistics([]).runs == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
@settings(max_examples=40, deadline=None)
def test_percentiles_are_ordered(values):
    found = percentiles(values)
    assert found["p50"] <= found["p90"] <= found["p99"] <= found["max"] == max(values)


def test_cost_is_the_servers_own_figure_or_the_price_list_or_unknown():
    prices = {"m": ModelPrice(prompt=2.0, completion=10.0, cached=0.5)}
    run = RunSummary(
        slug="a",
        reward=1.0,
        model="m",
        prompt_tokens=1000,
        cached_tokens=400,
        completion_tokens=100,
    )
    assert run_cost(run, prices) == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 10) / 1e6)
    assert run_cost(RunSummary(slug="a", reward=1.0, cost_usd=0.25), prices) == 0.25
    assert run_cost(RunSummary(slug="a", reward=1.0, model="other"), prices) is None
    assert job_statistics([run], prices=prices).unpriced_runs == 0
