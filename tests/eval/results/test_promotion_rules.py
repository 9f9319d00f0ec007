"""The gate: which measured rewards promote a checkpoint, and the reasons that it gives."""

import random

import numpy as np
import pytest
from benchmarks.promotion_power import promoted_with_missing, simulated
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.eval.results.paired_differences import fewest_units
from hud.eval.results.promotion_gate import Gate, decide, evidence, subsets_of
from hud.train.promotion.checkpoint_comparison import compared


def rewards(value, count, first=0):
    return {f"t{place:03}": [value] * 5 for place in range(first, first + count)}


def noisy(chance, tasks, seed):
    draw = random.Random(seed)
    return {slug: [float(draw.random() < chance) for _ in range(5)] for slug in tasks}


def test_a_gain_beyond_chance_promotes_and_one_below_the_least_gain_does_not():
    head, better = rewards(0.2, 20), rewards(0.6, 20)
    assert decide(head, better).promoted
    found = decide(head, better, Gate(min_gain=0.5))
    assert found.verdict == "unclear"
    assert found.sentence.startswith("Not shown to be better by more than 0.5: +0.400")
    assert decide(better, head).verdict == "worse"
    assert decide(head, {}).verdict == "unknown"


def test_tasks_that_one_side_lacks_count_as_unmeasured():
    head, better = rewards(0.2, 60), rewards(0.8, 60)
    hard = [f"t{place:03}" for place in range(0, 60, 4)]
    candidate = {slug: earned for slug, earned in better.items() if slug not in hard}
    held = decide(head, candidate)
    assert held.verdict == "unclear"
    assert (
        "75 of 300 runs of the candidate and 0 of 300 of the head have no reward" in held.sentence
    )
    assert decide(head, {**candidate, **{slug: [] for slug in hard}}).verdict == "unclear"
    alike = {slug: earned for slug, earned in head.items() if slug not in hard}
    assert decide(alike, candidate).promoted


def test_runs_that_one_side_lacks_of_some_tasks_count_as_unmeasured():
    """A candidate whose failing runs were never recorded gains by them."""
    head, better = rewards(0.2, 60), rewards(0.8, 60)
    fewer = {slug: earned[: 5 - at % 3] for at, (slug, earned) in enumerate(better.items())}
    held = decide(head, fewer)
    assert held.verdict == "unclear"
    assert (
        "60 of 300 runs of the candidate and 0 of 300 of the head have no reward" in held.sentence
    )
    assert decide(
        {slug: earned[: len(fewer[slug])] for slug, earned in head.items()}, fewer
    ).promoted


@pytest.mark.parametrize("swapped", [False, True])
def test_sides_that_play_each_task_unequally_often_lack_no_runs(swapped):
    often, seldom = rewards(0.2, 60), {slug: [0.8] * 3 for slug in rewards(0.2, 60)}
    head, candidate = (seldom, often) if swapped else (often, seldom)
    decision = decide(head, candidate)
    assert decision.verdict == ("worse" if swapped else "better")
    assert decision.unmeasured.p_value == 1.0


def test_identical_sides_are_called_identical_and_equal_means_are_not():
    head = noisy(0.5, rewards(0, 20), 1)
    same = decide(head, {slug: list(earned) for slug, earned in head.items()})
    assert same.verdict == "unclear"
    assert same.sentence == (
        "Not shown to be better: +0.000 [+0.000, +0.000] on 20 tasks. The two sides are identical: equal rewards, run by run, on 20 tasks."
    )
    assert same.as_dict()["overall"]["identical"]
    turned = decide(head, {slug: earned[::-1] for slug, earned in head.items()})
    assert turned.pairing.overall.mean == 0
    assert "identical" not in turned.sentence
    assert "identical" in evidence(compared("m", "a", "b", head, head).difference)


@pytest.mark.parametrize(
    ("slugs", "families"),
    [
        ([f"{name}-{n}" for name in ("add", "sort", "find") for n in range(20)], "3 families (add, find, sort)"),
        ([f"{name}-0a1b2c{n:02}" for name in ("add", "sort") for n in range(20)], "2 families (add, sort)"),
        ([f"add_{n}" for n in range(40)], None),
        ([f"{letter}-{n}" for letter in "abcdef" for n in range(4)], None),
        (["add", "sort", "find"], None),
    ],
)  # fmt: skip
def test_a_comparison_over_few_families_of_tasks_says_so(slugs, families):
    low, high = ({slug: [value] * 2 for slug in slugs} for value in (0.2, 0.6))
    decision, comparison = decide(low, high), compared("m", "a", "b", low, high).as_dict()
    if families is None:
        assert (decision.notes, comparison["note"]) == ((), None)
    else:
        (note,) = decision.notes
        assert note == comparison["note"]
        assert note.startswith(f"The {len(slugs)} tasks come in {families}. ")


def test_a_checkpoint_that_gains_overall_but_breaks_a_critical_subset_is_held():
    head = {**rewards(0.2, 30), **rewards(0.9, 8, first=30)}
    candidate = {**rewards(0.8, 30), **rewards(0.1, 8, first=30)}
    subsets = {
        "domain=refunds": list(rewards(0, 8, first=30)),
        "domain=other": list(rewards(0, 30)),
    }
    assert decide(head, candidate, None, subsets).promoted, "no subset is critical"
    found = decide(head, candidate, Gate(critical=("domain=refunds",)), subsets)
    assert not found.promoted
    assert found.reasons[0].startswith("Better than the head")
    assert found.reasons[1].startswith("Critical domain=refunds broke: -0.800")
    assert found.notes == ("domain=other got better: +0.600 [+0.600, +0.600] on 30 tasks.",)


def test_a_critical_subset_is_held_until_it_is_shown_to_keep_its_reward_and_says_what_would():
    tasks = [f"t{place:03}" for place in range(40)]
    head = noisy(0.3, tasks, 1)
    candidate = noisy(0.8, tasks, 2)
    kept = [*tasks[:8]]
    head |= noisy(0.6, kept, 3)
    candidate |= noisy(0.6, kept, 4)
    found = decide(head, candidate, Gate(critical=("tag=kept",)), {"tag=kept": kept})
    assert found.verdict == "unclear"
    assert found.reasons[1].startswith("Critical tag=kept may have lost more than 0.05: ")
    assert "tasks of 5 runs each" in found.reasons[1]
    same = candidate | {slug: head[slug] for slug in kept}
    assert decide(head, same, Gate(critical=("tag=kept",)), {"tag=kept": kept}).promoted


def test_a_small_critical_subset_is_judged_by_its_runs():
    head = {**rewards(0.2, 30), **rewards(1.0, 2, first=30)}
    candidate = {**rewards(0.8, 30), **rewards(0.0, 2, first=30)}
    pair_of_tasks = {"tag=pay": ["t030", "t031"]}
    found = decide(head, candidate, Gate(critical=("tag=pay",)), pair_of_tasks)
    assert found.verdict == "worse"
    assert "tag=pay broke: -1.000 [-1.000, -1.000] on 2 tasks" in found.sentence


def test_conditions_that_cannot_be_judged_are_refused_in_one_sentence():
    subsets = {"tag=a": ["t000"]}
    with pytest.raises(
        UsageError, match=r"^No task has tag=b; the subsets of these tasks are tag=a\.$"
    ):
        decide(rewards(0, 6), rewards(1, 6), Gate(critical=("tag=b",)), subsets)
    with pytest.raises(UsageError, match="COLUMN=VALUE, not 'tag'"):
        Gate(critical=("tag",))
    with pytest.raises(UsageError, match="at least 0"):
        Gate(max_regression=-0.1)


def test_columns_with_few_values_make_subsets_and_lists_put_a_task_in_several():
    columns = {
        f"t{place}": {
            "level": place % 3,
            "tag": ["even", "all"] if place % 2 == 0 else ["all"],
            "id": place,
        }
        for place in range(30)
    }
    found = subsets_of({**columns, "bare": None})
    assert set(found) == {"level=0", "level=1", "level=2", "tag=even", "tag=all"}
    assert len(found["tag=even"]) == 15
    assert subsets_of({"bare": None}) == {}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12),
    st.floats(0, 0.5),
)
def test_a_stricter_gate_promotes_nothing_that_a_looser_one_holds(pairs, least):
    head = {f"t{place}": [one / 4] * 2 for place, (one, _) in enumerate(pairs)}
    candidate = {f"t{place}": [one / 4] * 2 for place, (_, one) in enumerate(pairs)}
    subsets = {"tag=x": [slug for slug in head if slug < "t3"]}
    strict = decide(head, candidate, Gate(min_gain=least, critical=("tag=x",)), subsets)
    assert not strict.promoted or decide(head, candidate).promoted
    assert all(reason.endswith((".", "least")) for reason in strict.reasons)


@pytest.mark.slow
def test_a_candidate_whose_failing_runs_have_no_reward_is_held_and_they_are_counted():
    rng = np.random.default_rng(33)
    promoted, alone = promoted_with_missing(rng, 40, 1.0, gain=0.0, failing=True)
    assert alone > 0.9, "the measured runs alone would promote it"
    assert promoted == 0
    head = {f"t{place}": [0.0, 1.0, 0.0, 1.0] for place in range(12)}
    decision = decide(head, {slug: [None, 1.0, None, 1.0] for slug in head})
    assert decision.verdict == "unclear"
    assert (
        "24 of 48 runs of the candidate and 0 of 48 of the head have no reward" in decision.sentence
    )
    assert decision.as_dict()["unmeasured"]["candidate"] == 24


def test_runs_missing_alike_on_both_sides_are_noted_and_hold_nothing():
    head = {f"t{place}": [0.0, 0.0, 0.0, None] for place in range(12)}
    decision = decide(head, {slug: [1.0, 1.0, 1.0, None] for slug in head})
    assert decision.promoted
    assert any("12 of 48 runs of the candidate" in note for note in decision.notes)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30),
    st.integers(2, 200),
)
def test_more_looks_never_promote_what_one_look_holds(pairs, looks):
    head = {f"t{place}": [one / 4] for place, (one, _) in enumerate(pairs)}
    candidate = {f"t{place}": [one / 4] for place, (_, one) in enumerate(pairs)}
    series = decide(head, candidate, Gate(looks=looks))
    assert not series.promoted or decide(head, candidate).promoted
    assert not series.promoted or len(pairs) >= fewest_units(looks)


@pytest.mark.slow
def test_a_series_of_ten_candidates_without_gain_promotes_one_in_at_most_5_percent():
    rng, gate = np.random.default_rng(7), Gate(looks=10)
    promoted = 0
    for _ in range(60):
        pairs = (simulated(rng, 20) for _ in range(10))
        promoted += any(decide(head, candidate, gate).promoted for head, candidate in pairs)
    assert promoted <= 3


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [6, 12, 20, 40])
def test_at_most_one_null_comparison_in_twenty_is_called_a_difference(tasks, capsys):
    """500 comparisons of a policy with itself, and the power against a gain of 0.2, printed."""
    rng = np.random.default_rng(20)
    nulls = [decide(*simulated(rng, tasks)).verdict for _ in range(500)]
    gains = [decide(*simulated(rng, tasks, gain=0.2)).promoted for _ in range(500)]
    promoted, called = nulls.count("better") / 500, 1 - nulls.count("unclear") / 500
    with capsys.disabled():
        power = sum(gains) / 500
        print(
            f"\n{tasks} tasks x 5: promoted {promoted:.3f}, called {called:.3f}, power {power:.3f}"
        )
    assert promoted <= 0.05
    assert called <= 0.05
