"""The interval that holds at every moment: false verdicts of measurements that stop when they like, and the evidence that it takes."""

import math

import numpy as np
import pytest

from hud.eval.results.anytime_interval import _bets, anytime_interval
from hud.eval.results.paired_differences import pair
from hud.eval.results.promotion_gate import decide

NULLS, TASKS = 500, 40


def comparisons(rng, gain, count):
    """Yield rewards of two policies on `TASKS` tasks with chances of their own, two runs each."""
    for _ in range(count):
        chances = rng.uniform(0, 1 - gain, TASKS)
        yield [
            {
                str(task): rng.binomial(1, chance + more, 2).astype(float).tolist()
                for task, chance in enumerate(chances)
            }
            for more in (0.0, gain)
        ]


def differences(before, after):
    return np.asarray([np.mean(after[task]) - np.mean(before[task]) for task in before])


def stops(values, *, every=1):
    """Return whether the second side is better, and the tasks played, of a look after each `every`; None: never certain."""
    for count in range(every, len(values) + 1, every):
        low, high = anytime_interval(values[:count], -1, 1, 0.05)
        if low > 0 or high < 0:
            return low > 0, count
    return None, len(values)


@pytest.mark.slow
def test_at_most_one_null_in_twenty_is_promoted_at_any_stopping_time():
    """A look after every second task, and the gate over what was played; a fixed interval looked at as often promotes too many."""
    rng = np.random.default_rng(0)
    promoted = peeked = wrong = 0
    for before, after in comparisons(rng, 0.0, NULLS):
        values = differences(before, after)
        better, count = stops(values, every=2)
        wrong += better is not None
        some = list(before)[:count]
        promoted += decide({k: before[k] for k in some}, {k: after[k] for k in some}).promoted
        running = values.cumsum() / np.arange(1, TASKS + 1)
        spread = np.asarray(
            [values[: n + 1].std(ddof=1) / math.sqrt(n + 1) for n in range(9, TASKS)]
        )
        peeked += bool((running[9:] > 1.96 * spread).any())
    assert wrong <= 0.05 * NULLS
    assert promoted <= 0.05 * NULLS
    assert peeked > 0.05 * NULLS, "the control: repeated looks at a fixed interval"


def test_a_true_gain_is_certain_before_all_tasks_are_played():
    rng = np.random.default_rng(1)
    results = [stops(differences(*sides), every=5) for sides in comparisons(rng, 0.4, 60)]
    assert sum(better is True for better, _ in results) >= 57
    assert np.mean([count for _, count in results]) < 0.7 * TASKS


def test_the_bounds_are_the_means_that_the_capital_refutes():
    """Against the formula, written again: capital of every mean of a grid, at every moment."""
    values = np.random.default_rng(2).beta(2, 5, 40)
    low, high = anytime_interval(values, 0, 1, 0.05)
    for side, bound in ((values, low), (1 - values, 1 - high)):
        bets = _bets(side, 0.025)
        for mean in np.linspace(0.01, 0.99, 99):
            capital = best = 1.0
            for bet, value in zip(bets, side, strict=True):
                capital *= 1 + min(bet, 0.5 / mean) * (value - mean)
                best = max(best, capital)
            assert (best >= 40) == (mean < bound), mean


@pytest.mark.parametrize("values", [[0.5, 1.2], [-3.0], [math.nan]])
def test_a_value_outside_of_the_range_leaves_everything_open(values):
    assert anytime_interval(values, -1, 1, 0.05) == (-math.inf, math.inf)


def test_nothing_measured_says_nothing():
    assert anytime_interval([], -1, 1, 0.05) == pytest.approx((-1, 1))


def test_the_interval_of_a_long_measurement_is_about_twice_as_wide_as_the_fixed_one():
    values = np.random.default_rng(3).normal(0.1, 0.2, 2000).clip(-1, 1)
    low, high = anytime_interval(values, -1, 1, 0.05)
    fixed = 2 * 1.96 * values.std() / math.sqrt(len(values))
    assert low < values.mean() < high
    assert fixed < high - low < 2.5 * fixed


def test_pairs_are_those_of_the_gate():
    (before, after), *_ = comparisons(np.random.default_rng(4), 0.1, 1)
    changes = pair(before, after).changes
    assert [change.difference for change in changes] == pytest.approx(differences(before, after))
