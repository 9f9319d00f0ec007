"""The percentile of a reward: mid-ranks, anchors, and what is between them where few people did the task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.benchmarks.baseline.percentile import FEWEST_PEOPLE, SHRINKAGE, anchor, rank, score

REWARD = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1, width=32))
PEOPLE = st.lists(REWARD, min_size=1, max_size=12)
REFERENCES = st.lists(st.tuples(REWARD, st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=4)


@pytest.mark.slow
@given(PEOPLE, REFERENCES)
def test_a_failure_is_0_and_full_marks_are_1_whatever_people_did(people, references):
    for several in (people, people * 3):
        assert score(0.0, several, references) == 0.0
        assert score(1.0, several, references) == 1.0


@pytest.mark.slow
@given(PEOPLE, st.floats(0.01, 0.99))
def test_at_a_persons_reward_between_the_ends_the_rank_is_the_mid_rank(people, reward):
    people = [*people, reward]
    below = sum(one < reward for one in people)
    ties = people.count(reward)
    assert rank(reward, people) == pytest.approx((below + ties / 2) / len(people))


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12))
def test_the_mean_rank_of_the_people_themselves_is_a_half_where_none_is_at_an_end(people):
    assert sum(rank(one, people) for one in people) / len(people) == pytest.approx(0.5)


@pytest.mark.slow
@given(PEOPLE, REWARD)
def test_the_order_of_people_does_not_matter_and_each_twice_is_as_each_once(people, reward):
    once = rank(reward, people)
    assert rank(reward, people[::-1]) == once
    assert rank(reward, people * 2) == pytest.approx(once)


@pytest.mark.slow
@given(PEOPLE, REFERENCES, REWARD, REWARD)
def test_a_score_is_in_0_to_1_and_never_falls_with_the_reward(people, references, one, other):
    low, high = sorted((one, other))
    for people_then in (people, people[:2]):
        before = score(low, people_then, references)
        after = score(high, people_then, references)
        assert 0 <= before <= after + 1e-12
        assert after <= 1


@pytest.mark.slow
@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), REFERENCES, st.floats(0, 1))
def test_a_little_more_reward_is_a_little_more_score(twentieths, references, reward):
    """Between rewards that are a twentieth apart or equal, ranks and anchors rise by at most 20 for each reward."""
    people = [one / 20 for one in twentieths]
    references_ = [(round(value * 20) / 20, standing) for value, standing in references]
    step = 1e-6
    for measure, against in ((rank, people), (anchor, references_)):
        rise = measure(min(reward + step, 1), against) - measure(reward, against)
        assert rise <= 20 * step + 1e-9


@given(REFERENCES, REWARD)
def test_below_the_fewest_people_only_the_references_count(references, reward):
    few = [1.0] * (FEWEST_PEOPLE - 1)
    assert score(reward, few, references) == anchor(reward, references)


@pytest.mark.slow
@given(PEOPLE, REFERENCES, REWARD)
def test_the_more_people_the_less_the_references_weigh(people, references, reward):
    people = people * FEWEST_PEOPLE
    ranked = rank(reward, people, references)
    apart = abs(anchor(reward, references) - ranked)
    for times in (1, 10):
        many = people * times
        off = abs(score(reward, many, references) - ranked)
        assert off == pytest.approx(apart * SHRINKAGE / (len(many) + SHRINKAGE), abs=1e-9)


@pytest.mark.parametrize(
    ("reward", "references", "standing"),
    [
        (0.3, [], 0.3),
        (0.0, [(0.0, 0), (1.0, 1)], 0.0),
        (0.2, [(0.2, 0), (0.8, 1)], 0.0),
        (0.5, [(0.2, 0), (0.8, 1)], 0.5),
        (0.9, [(0.2, 0), (0.8, 1)], 1.0),
        (0.4, [(0.0, 0), (0.4, 0.1), (1.0, 1)], 0.1),
        (0.7, [(0.0, 0), (0.4, 0.1), (1.0, 1)], 0.55),
        # Two novices with one reward count as their mean; a worse one cannot stand above a better one.
        (0.5, [(0.5, 0.2), (0.5, 0.4)], 0.3),
        (0.6, [(0.4, 0.5), (0.6, 0.1)], 0.5),
        # A novice who gets what an end gets says nothing about what is between.
        (0.0, [(0.0, 0), (0.0, 0.3), (1.0, 1)], 0.0),
        (1.0, [(0.0, 0), (1.0, 0.3), (1.0, 1)], 1.0),
        # Solvers that do not differ anchor nothing.
        (0.6, [(1.0, 0), (1.0, 1)], 0.6),
    ],
)
def test_anchors_are_the_rewards_of_solvers_with_a_declared_standing(reward, references, standing):
    assert anchor(reward, references) == pytest.approx(standing)


def test_people_count_between_the_ends_alone():
    assert rank(1.0, [1.0] * 5) == rank(1.0, [0.0] * 5) == 1.0
    assert rank(0.0, [1.0] * 5) == rank(0.0, [0.0] * 5) == 0.0
    assert rank(0.5, [0.0, 0.0, 0.5, 1.0]) == pytest.approx(2.5 / 4)
    assert rank(0.6, [0.4] * 3, [(0.2, 0), (0.8, 1)]) == pytest.approx(0.75)
    assert rank(0.2, [0.1] * 3, [(0.2, 0), (0.8, 1)]) == 0.0
    assert rank(0.8, [0.9] * 3, [(0.2, 0), (0.8, 1)]) == 1.0
