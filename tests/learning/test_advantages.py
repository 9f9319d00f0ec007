"""Advantages by explicit groups; failures and flat groups never pass silently."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.learning.advantages import compute_advantages
from hud.learning.wire_types import AdvantageOptions

reward = st.floats(-1, 1, width=32)


def test_a_reward_is_compared_with_its_own_group_wherever_it_stands():
    found = compute_advantages([1, 0, 0, 1, 1, 0], group_ids=["a", "b", "a", "b", "a", "b"])
    assert found.values == pytest.approx([1 / 3, -1 / 3, -2 / 3, 2 / 3, 1 / 3, -1 / 3])
    assert found.group_idx == [0, 1, 0, 1, 0, 1]
    assert found.metrics["spread_groups:sum"] == 2
    assert found.metrics["reward:mean"] == 0.5


def test_without_ids_the_batch_is_one_group():
    found = compute_advantages([1, 0, 0, 0])
    assert found.values == [0.75, -0.25, -0.25, -0.25]
    assert found.group_idx == [None] * 4


@pytest.mark.slow
@given(st.lists(reward, min_size=2, max_size=6), st.booleans())
def test_advantages_equal_the_definition(rewards, divide):
    found = compute_advantages(
        rewards, options=AdvantageOptions(divide_by_std=divide), reward_scale=2.0
    )
    mean = statistics.fmean(rewards)
    if min(rewards) == max(rewards):
        assert found.values == [0.0] * len(rewards)
        return
    size = statistics.pstdev(rewards) + 1e-6 if divide else 1.0
    assert found.values == pytest.approx([2 * (r - mean) / size for r in rewards], abs=1e-9)


@pytest.mark.slow
@given(st.lists(reward, min_size=2, max_size=6))
def test_leave_one_out_is_the_mean_of_the_others(rewards):
    found = compute_advantages(rewards, options=AdvantageOptions(baseline="leave_one_out"))
    for position, value in enumerate(found.values):
        others = rewards[:position] + rewards[position + 1 :]
        assert value == pytest.approx(rewards[position] - statistics.fmean(others), abs=1e-9)


def test_a_function_replaces_baseline_and_scaling():
    found = compute_advantages(
        [1, 0, 5, 3], group_ids=["a", "a", "b", "b"], function=lambda r: [x - max(r) for x in r]
    )
    assert found.values == [0, -1, 0, -2]
    with pytest.raises(UsageError, match="one finite number for each reward"):
        compute_advantages([1, 0], function=lambda r: [1.0])


def test_groups_without_spread_are_counted_and_left_out():
    found = compute_advantages([0.1] * 3 + [1, 0, 0], group_ids=["flat"] * 3 + ["good"] * 3)
    assert found.trained == [False] * 3 + [True] * 3
    assert found.values[:3] == [0, 0, 0]
    assert (found.metrics["no_spread_groups:sum"], found.metrics["spread_groups:sum"]) == (1, 1)
    assert found.warnings == []
    flat = compute_advantages([1, 1])
    assert "nothing to learn" in flat.warnings[0]


@pytest.mark.parametrize(
    ("policy", "values", "trained"),
    [
        ("drop_group", [0, 0, 0, 0.5, -0.5], [False, False, False, True, True]),
        ("drop_run", [0.5, 0, -0.5, 0.5, -0.5], [True, False, True, True, True]),
        ("zero", [2 / 3, -1 / 3, -1 / 3, 0.5, -0.5], [True] * 5),
    ],
)
@pytest.mark.parametrize("kind", ["infrastructure", "environment", "grader", "timeout"])
def test_a_failed_run_is_treated_by_policy(policy, values, trained, kind):
    found = compute_advantages(
        [1, math.nan, 0, 1, 0],
        group_ids=["a", "a", "a", "b", "b"],
        failures=[None, kind, None, None, None],
        options=AdvantageOptions(failed_runs=policy),
    )
    assert found.values == pytest.approx(values)
    assert found.trained == trained
    assert found.metrics["failed_runs:sum"] == 1
    assert bool(found.warnings) == (policy == "drop_group")


def test_an_agents_own_failure_counts():
    found = compute_advantages([1, 0], failures=[None, "agent"])
    assert found.values == [0.5, -0.5]
    assert found.metrics["failed_runs:sum"] == 0


def test_a_group_left_too_small_is_dropped():
    options = AdvantageOptions(failed_runs="drop_run", min_group_size=3)
    found = compute_advantages([1, 0, 0], failures=["timeout", None, None], options=options)
    assert found.trained == [False] * 3
    assert found.metrics["dropped_groups:sum"] == 1


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(UsageError, match="Run 1 of the batch has reward nan"):
        compute_advantages([1, math.nan])


@given(
    st.lists(st.lists(reward, min_size=2, max_size=6), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_a_permutation_keeps_each_group_s_advantages_and_gives_them_to_other_runs(groups, seed):
    rewards = [reward for group in groups for reward in group]
    ids = [str(number) for number, group in enumerate(groups) for _ in group]
    plain = compute_advantages(rewards, group_ids=ids)
    options = AdvantageOptions(permutation_seed=seed)
    shuffled = compute_advantages(rewards, group_ids=ids, options=options)
    assert shuffled.trained == plain.trained
    assert shuffled.metrics == plain.metrics
    for group in set(ids):
        places = [place for place, name in enumerate(ids) if name == group]
        assert sorted(shuffled.values[place] for place in places) == sorted(
            plain.values[place] for place in places
        )
    again = compute_advantages(rewards, group_ids=ids, options=options)
    assert again.values == shuffled.values


def test_a_permuted_advantage_tells_nothing_of_its_run_s_reward():
    groups, size = 2_000, 4
    rewards = [1.0, 0.0, 0.0, 0.0] * groups
    ids = [str(number // size) for number in range(groups * size)]
    options = AdvantageOptions(permutation_seed=7)
    values = compute_advantages(rewards, group_ids=ids, options=options).values
    best = [value for value, reward in zip(values, rewards, strict=True) if reward]
    # Each is 0.75 with probability 1/4 and else -0.25: mean 0, standard deviation 0.43 / sqrt(2,000) = 0.0097.
    assert abs(statistics.fmean(best)) < 0.05
