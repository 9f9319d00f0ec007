"""The Pareto front of a prompt search, and the reflector's replies."""

from random import Random

import pytest

from hud.train.prompt_search.candidates import (
    Candidate,
    best_of,
    choose_parent,
    pareto_wins,
    shuffled,
)
from hud.train.prompt_search.reflection import LONGEST_PROMPT, proposed_prompt


def candidate(*rewards, text="x"):
    return Candidate(text, None, {f"t{place}": reward for place, reward in enumerate(rewards)})


def test_a_candidate_that_is_best_nowhere_is_no_parent():
    assert pareto_wins([candidate(0.1, 0.1), candidate(1.0, 0.0), candidate(0.0, 1.0)]) == {
        1: 1,
        2: 1,
    }


def test_a_candidate_that_is_best_only_where_others_are_is_dominated():
    both, first, second = candidate(1.0, 1.0), candidate(1.0, 0.0), candidate(0.0, 1.0)
    assert pareto_wins([first, both, second]) == {1: 2}


def test_of_two_equal_candidates_the_earlier_one_stays():
    assert pareto_wins([candidate(0.5, 0.5), candidate(0.5, 0.5)]) == {0: 2}


def test_a_task_that_a_candidate_has_no_reward_for_counts_for_the_others():
    measured = Candidate("a", None, {"t0": 0.2})
    other = Candidate("b", None, {"t1": 0.9})
    assert pareto_wins([measured, other]) == {0: 1, 1: 1}


def test_without_rewards_the_models_own_prompt_is_the_parent():
    assert choose_parent([Candidate("", None, {})], Random(0)) == 0


def test_parents_are_drawn_by_the_tasks_that_they_win():
    strong, weak = candidate(1.0, 1.0, 1.0, 0.0), candidate(0.0, 0.0, 0.0, 1.0)
    drawn = [choose_parent([strong, weak], Random(seed)) for seed in range(2_000)]
    assert sum(drawn) / 2_000 == pytest.approx(0.25, abs=0.04), "four standard errors"


def test_the_best_has_the_highest_mean_and_of_equal_ones_the_first_is_taken():
    assert best_of([candidate(0.0, 1.0), candidate(0.5, 0.5), candidate(0.9, 0.9)]) == 2
    assert best_of([candidate(0.0, 1.0), candidate(0.5, 0.5)]) == 0


def test_shuffled_rewards_stay_at_their_task_and_change_places_among_the_candidates():
    candidates = [candidate(*[float(place)] * 50) for place in range(3)]
    moved = shuffled(candidates, Random(0))
    for slug in candidates[0].rewards:
        assert sorted(one.rewards[slug] for one in moved) == [0.0, 1.0, 2.0]
    means = [one.mean for one in moved]
    assert max(means) - min(means) < 0.7, "none is better than the others"


@pytest.mark.parametrize(
    ("reply", "prompt"),
    [
        ("Here:\n```\nBe brief.\n```\nDone.", "Be brief."),
        ("```text\nBe brief.\nBe kind.\n```", "Be brief.\nBe kind."),
        ("```\nUse\n```python\nx\n```\nfor code.\n```", "Use\n```python\nx\n```\nfor code."),
        ("``` Be brief. ```", "Be brief."),
        ("Be brief.", None),
        ("```\n\n```", None),
        ("```\nnever closed", None),
        (f"```\n{'x' * (LONGEST_PROMPT + 1)}\n```", None),
    ],
)
def test_a_proposal_stands_between_two_fences(reply, prompt):
    assert proposed_prompt(reply) == prompt
