"""Trends: intervals that hold what they promise, and changes of held-out scores that are seldom a false alarm."""

import numpy as np
import pytest
from benchmarks.guard_false_alarms import CRASH, alarmed, changes
from hypothesis import given
from hypothesis import strategies as st

from hud.eval.results.held_out_scores import scores_of
from hud.train.monitoring.alarms import alarms, guarded_alarms
from hud.train.monitoring.trends import (
    GroupMean,
    between,
    change_of,
    change_of_means,
    paired,
    recent_change_of,
    student,
)


@pytest.mark.parametrize(
    ("level", "freedom", "exact"),
    [(0.05, 1, 12.7062), (0.05, 2, 4.3027), (0.05, 5, 2.5706), (0.05, 30, 2.0423), (0.001, 5, 6.8688), (0.001, 11, 4.4370), (0.0001, 23, 4.6930)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(level, freedom, exact):
    assert student(level, freedom) == pytest.approx(exact, rel=1e-4)


@pytest.mark.slow
def test_intervals_hold_the_change_in_19_of_20_cases():
    rng = np.random.default_rng(3)
    spans = [between(rng.normal(0, 1, 5), rng.normal(0.5, 2, 8)) for _ in range(2000)]
    pairs = [paired(rng.normal(0.5, 1, 9).tolist()) for _ in range(2000)]
    steps = [
        change_of_means(_means(rng, 0, 1, steps=2), _means(rng, 0.5, 2, steps=5))
        for _ in range(2000)
    ]
    for found in (spans, pairs, steps):
        assert 0.93 < np.mean([one.low <= 0.5 <= one.high for one in found]) < 0.97


def _means(rng, mean, spread, *, steps, groups=8):
    drawn = rng.normal(mean, spread, (steps, groups))
    errors = drawn.std(axis=1, ddof=1) / groups**0.5
    return [
        GroupMean(float(one), float(error), groups)
        for one, error in zip(drawn.mean(axis=1), errors, strict=True)
    ]


Rewards = st.lists(
    st.one_of(st.none(), st.floats(min_value=-1, max_value=1)), min_size=1, max_size=3
)
Evaluations = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), Rewards), min_size=1, max_size=6
)


@pytest.mark.slow
@given(Evaluations)
def test_a_change_lies_in_its_interval_and_names_an_earlier_evaluation(rewards):
    found = change_of(dict(enumerate(rewards)))
    if len(rewards) == 1:
        assert found is None
    if found is not None:
        assert found.since < len(rewards) - (2 if len(rewards) > 2 else 1)
        assert 0 <= found.below <= min(2, len(rewards) - 1)
        if found.low is not None:
            assert found.low <= found.mean <= found.high


@pytest.mark.slow
@given(Evaluations)
def test_what_does_not_change_never_falls(rewards):
    found = change_of(dict.fromkeys(range(4), rewards[0]))
    assert found is None or (found.mean == pytest.approx(0, abs=1e-12) and found.below == 0)


@pytest.mark.slow
def test_a_fall_is_found_within_two_evaluations_and_noise_hardly_ever():
    rng = np.random.default_rng(5)
    honest = [alarmed(changes(rng, 24, rise=0.02)) for _ in range(40)]
    assert sum(one is not None for one in honest) <= 2
    gamed = [alarmed(changes(rng, 24, rise=0.02, crash=0.2)) for _ in range(40)]
    assert sum(one in (CRASH, CRASH + 1) for one in gamed) >= 36


def rows(count=30, **series):
    names = {
        "reward": "rollout_reward:mean",
        "tokens": "rollout_tokens:mean",
        "entropy": "entropy:mean",
    }
    return [
        {
            "step": step,
            "metrics": {names.get(key, f"grade_{key}:mean"): value(step) for key, value in series.items()},
        }
        for step in range(count)
    ]  # fmt: skip


def noise(step):
    return 0.01 * (step * 7 % 5 - 2)


def flat(step):
    return 0.4 + noise(step)


def rising(step):
    return 0.3 + 0.02 * step + noise(step)


def saturating(step):
    return min(1.0, 0.2 + 0.2 * step)


def falling(step):
    return (0.6 if step < 12 else 0.05) + noise(step)


def noisy_plateau(step):
    """An honest run of which a quarter of the grades are flipped: it cannot rise above 0.75."""
    return min(0.75, 0.3 + 0.03 * step) + noise(step)


@pytest.mark.parametrize(
    ("history", "names"),
    [
        (rows(reward=flat, tokens=lambda step: 20 + 2 * step), ["answers grow"]),
        (rows(reward=rising, tokens=lambda step: 20 + 2 * step), []),
        (rows(reward=flat, tokens=lambda step: 20 + step % 3), []),
        (rows(reward=flat, format=saturating, fix=flat), ["component saturates"]),
        (rows(reward=rising, format=saturating, fix=rising), []),
        (rows(reward=flat, format=lambda step: 1.0, fix=flat), []),
        (rows(20, reward=flat, format=saturating, fix=flat), []),
        (rows(reward=flat, format=saturating), []),
        (rows(reward=flat, entropy=lambda step: 2 * 0.8**step), ["entropy collapses"]),
        (rows(reward=saturating, entropy=lambda step: 2 * 0.8**step), []),
        (
            rows(reward=falling, entropy=lambda step: 1 + 0.2 * step),
            ["reward collapses", "entropy grows"],
        ),
        (rows(reward=falling), ["reward collapses"]),
        (rows(reward=noisy_plateau, entropy=lambda step: 2 * 0.8**step if step < 15 else 0.07), []),
    ],
)
def test_guarded_alarms_want_reward_for_what_grows(history, names):
    found = list(guarded_alarms(history, []))
    assert [one.name for one in found] == names
    assert all(one.guarded for one in found)


@pytest.mark.parametrize(
    ("history", "name", "words"),
    [
        (rows(reward=flat, entropy=lambda step: 1 + 0.2 * step), "entropy grows", "did not rise"),
        (rows(60, reward=noisy_plateau, entropy=lambda step: max(2 * 0.8**step, 0.01)), "entropy collapses", "no longer rises"),
    ],
)  # fmt: skip
def test_entropy_alone_warns_in_the_words_of_the_evidence_and_pauses_nothing(history, name, words):
    (found,) = guarded_alarms(history, [])
    assert (found.name, found.guarded) == (name, False)
    assert words in found.sentence
    assert "forgets" not in found.sentence


def held_out(recent, *, tasks="held"):
    change = {"since": 0, "mean": 0.0, "low": -0.1, "high": 0.1, "below": 0}
    shared = {"low": None, "high": None, "runs": 12}
    sets = [{"name": tasks, "mean": 0.4, **shared, "change": change, "recent": recent}]
    scores = [{"step": step, "mean": 0.4, **shared} for step in (0, 10, 20)]
    return scores_of({"scores": [*scores, {"step": 30, "mean": 0.4, **shared, "sets": sets}]})


@pytest.mark.parametrize(
    ("reward", "low", "high", "names"),
    [
        (rising, -0.1, 0.12, ["held-out stagnates"]),
        (rising, 0.02, 0.3, []),
        (rising, -0.1, 0.7, []),
        (flat, -0.1, 0.1, []),
    ],
)
def test_a_rise_that_held_out_scores_do_not_show_is_a_warning(reward, low, high, names):
    """Not where they rise, too, where so few tasks cannot tell, or where nothing rises."""
    recent = {"since": 0, "mean": (low + high) / 2, "low": low, "high": high, "below": 0}
    history = rows(reward=reward, tokens=lambda step: 10 + 3 * step)
    found = [one for one in guarded_alarms(history, held_out(recent)) if one.name != "answers grow"]
    assert [one.name for one in found] == names
    for one in found:
        assert not one.guarded
        assert "show nothing of it over 3 evaluations: held +0.010" in one.sentence
        assert "Meanwhile a rollout grew from 11.5 to 91.0 tokens." in one.sentence


def test_a_fall_of_both_scores_is_a_collapse():
    change = {"since": 0, "mean": -0.3, "low": -0.5, "high": -0.1, "below": 2}
    last = {"name": "held", "mean": 0.1, "low": None, "high": None, "runs": 12, "change": change}
    scores = scores_of({"scores": [{"step": 30, "mean": 0.1, "low": None, "high": None, "runs": 12, "sets": [last]}]})  # fmt: skip
    found = list(guarded_alarms(rows(reward=falling), scores))
    assert [one.name for one in found] == ["policy collapses", "reward collapses"]
    assert all(one.guarded for one in found)
    assert "the training reward fell, too" in found[0].sentence


def test_the_recent_change_is_from_the_evaluation_before_the_last_three():
    def evaluation(mean):
        return {f"t{task}": [mean + 0.01 * (task % 2)] for task in range(12)}

    played = {step: evaluation(mean) for step, mean in enumerate([0.1, 0.2, 0.5, 0.6, 0.8])}
    assert recent_change_of({step: played[step] for step in (0, 1, 2)}) is None
    found = recent_change_of(played)
    assert (found.since, found.mean, found.below) == (1, pytest.approx(0.5), 0)


@pytest.mark.parametrize(
    ("below", "reward", "name", "guarded"),
    [
        (2, rising, "reward diverges", True),
        (1, rising, "held-out falls", False),
        (2, flat, "held-out falls", False),
    ],
)
def test_a_fall_is_guarded_where_it_lasts_and_the_training_reward_rises(
    below, reward, name, guarded
):
    change = {"since": 5, "mean": -0.3, "low": -0.5, "high": -0.1, "below": below}
    shared = {"low": None, "high": None, "runs": 12}
    scores = [{"step": step, "mean": 0.5, **shared} for step in (0, 5, 20)]
    last = {"name": "held", "mean": 0.2, **shared, "change": change}
    scores.append({"step": 30, "mean": 0.2, **shared, "sets": [last]})
    (found,) = alarms(rows(reward=reward), scores_of({"scores": scores}))
    assert (found.name, found.guarded, found.best, found.step) == (name, guarded, 5, 30)


def test_a_reward_that_is_gamed_in_a_few_steps_is_found_at_the_second_evaluation():
    """Rewards of the demo's policy, whose answers come without a look at anything from the fourth step on."""
    rewards = [0.578, 0.616, 0.667, 0.763, 0.769, 0.757]
    change = {"since": 0, "mean": -0.157, "low": -0.237, "high": -0.076, "below": 2}
    last = {"name": "held", "mean": 0.0, "low": None, "high": None, "runs": 70, "change": change}
    score = {"step": 6, "mean": 0.0, "low": None, "high": None, "runs": 70, "sets": [last]}
    history = rows(len(rewards), reward=lambda step: rewards[step])
    (found,) = guarded_alarms(history, scores_of({"scores": [score]}))
    assert (found.name, found.guarded, found.best) == ("reward diverges", True, 0)


def test_the_groups_of_two_steps_show_a_rise_that_two_means_do_not():
    """Rewards of another seed of the same policy: two first means lie too far apart to say anything by themselves."""
    rewards = [0.51, 0.63, 0.638, 0.733, 0.77, 0.733]
    change = {"since": 0, "mean": -0.19, "low": -0.27, "high": -0.11, "below": 2}
    last = {"name": "held", "mean": 0.004, "low": None, "high": None, "runs": 70, "change": change}
    scores = scores_of({"scores": [{"step": 6, "mean": 0.004, "low": None, "high": None, "runs": 70, "sets": [last]}]})  # fmt: skip
    history = rows(len(rewards), reward=lambda step: rewards[step])
    (unsure,) = guarded_alarms(history, scores)
    assert (unsure.name, unsure.guarded) == ("held-out falls", False)
    for row in history:
        row["metrics"] |= {"rollout_reward:stderr": 0.03, "rollout_groups:sum": 16.0}
    (found,) = guarded_alarms(history, scores)
    assert (found.name, found.guarded) == ("reward diverges", True)
