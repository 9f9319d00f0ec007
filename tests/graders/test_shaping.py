"""Bending rewards, and keeping each bend on record."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.graders import (
    EvaluationResult,
    Fade,
    SubScore,
    combine,
    gate,
    length_normalized,
    overlong_penalty,
    step_bonus,
)


async def test_the_gate_fails_everything_without_an_outcome():
    result = await combine(
        SubScore(name="format", value=1.0, weight=0.5), SubScore(name="fix", value=0.0, weight=0.5)
    )
    shut = gate(result, outcome=0.0)
    assert (result.reward, shut.reward) == (0.5, 0.0)
    assert gate(result, outcome=0.0, floor=-1.0).reward == -1.0
    assert gate(result, outcome=0.1).reward == 0.5
    assert [part.name for part in shut.subscores] == ["format", "fix", "gate"]
    assert shut.subscores[-1].info == {"floor": 0.0, "passed": False}
    assert len(result.subscores) == 2


def test_the_gate_takes_subscores_plain_numbers_and_truths():
    assert gate(0.7, outcome=SubScore(name="fix", value=0.0)).reward == 0.0
    assert gate(0.7, outcome=SubScore(name="fix", value=1.0)).reward == 0.7
    assert gate(0.7, outcome=True).reward == 0.7


def test_an_outcome_below_zero_does_not_open_the_gate_and_nan_is_refused():
    assert gate(0.7, outcome=-0.5, floor=-1.0).reward == -1.0
    with pytest.raises(UsageError, match="outcome"):
        gate(0.7, outcome=math.nan)


def test_fewer_steps_earn_more():
    rewards = [step_bonus(1.0, steps, most=10, bonus=0.2).reward for steps in (1, 4, 7, 10, 25)]
    assert rewards == sorted(rewards, reverse=True)
    assert rewards == pytest.approx([1.0, 1 - 0.2 / 3, 1 - 0.4 / 3, 0.8, 0.8])
    assert step_bonus(1.0, 0, most=10).reward == 1.0
    assert step_bonus(1.0, 3, most=10, fewest=3).reward == 1.0


def test_speed_earns_nothing_for_what_failed():
    assert step_bonus(0.0, 1, most=10).reward == 0.0
    assert step_bonus(-1.0, 1, most=10).reward == step_bonus(-1.0, 99, most=10).reward == -1.0


@pytest.mark.parametrize(
    "options", [{"most": 1}, {"most": 10, "bonus": 1.5}, {"most": 10, "bonus": -1}]
)
def test_impossible_bonuses_are_refused(options):
    with pytest.raises(UsageError):
        step_bonus(1.0, 2, **options)


def test_long_answers_are_scaled_down():
    assert length_normalized(1.0, 100, target=200).reward == 1.0
    assert length_normalized(1.0, 400, target=200).reward == 0.5
    assert length_normalized(-1.0, 400, target=200).reward == -1.0
    assert length_normalized(1.0, 0, target=200).reward == 1.0
    with pytest.raises(UsageError):
        length_normalized(1.0, 10, target=0)


@pytest.mark.parametrize(
    ("length", "reward"), [(0, 1.0), (300, 1.0), (325, 0.75), (400, 0.0), (9_000, 0.0)]
)
def test_an_overlong_answer_loses_up_to_one(length, reward):
    """Equation 13 of DAPO (arXiv 2503.14476), with L_max 400 and L_cache 100."""
    result = overlong_penalty(1.0, length, most=400, margin=100)
    assert result.reward == reward
    assert result.subscores[-1].value == reward - 1.0
    assert overlong_penalty(0.0, length, most=400, margin=100).reward == reward - 1.0
    for margin in (0, 401):
        with pytest.raises(UsageError, match="0 < margin <= most"):
            overlong_penalty(1.0, length, most=400, margin=margin)


def test_bends_chain_and_every_one_is_kept():
    result = step_bonus(
        length_normalized(gate(EvaluationResult(reward=1.0, content="well"), 1.0), 10, target=5),
        steps=10,
        most=10,
        bonus=0.5,
    )
    assert result.reward == 0.25
    assert result.content == "well"
    assert [(part.name, part.weight) for part in result.subscores] == [
        ("gate", 0.0),
        ("length", 0.0),
        ("step_bonus", 0.0),
    ]


@given(st.floats(0, 1), st.integers(0, 100), st.floats(0, 1))
def test_a_bonus_never_leaves_the_range_and_never_lifts_a_reward(reward, steps, bonus):
    shaped = step_bonus(reward, steps, most=20, bonus=bonus).reward
    assert 0.0 <= shaped <= reward


def test_the_process_fades_into_the_outcome():
    fade = Fade(start=0.2, end=0.6, share=0.5)
    shares = [fade.process_share(progress) for progress in (0.0, 0.2, 0.4, 0.6, 1.0)]
    assert shares == pytest.approx([0.5, 0.5, 0.25, 0.0, 0.0])
    assert fade.reward(process=1.0, outcome=0.0, progress=0.4) == pytest.approx(0.25)
    assert fade.reward(process=0.0, outcome=1.0, progress=1.0) == 1.0


def test_a_fade_at_once_is_a_step():
    fade = Fade(start=0.5, end=0.5)
    assert (fade.process_share(0.49), fade.process_share(0.5)) == (0.5, 0.0)


@pytest.mark.parametrize("options", [{"start": 0.6, "end": 0.5}, {"share": 1.5}, {"end": 2.0}])
def test_impossible_schedules_are_refused(options):
    with pytest.raises(UsageError):
        Fade(**options)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_faded_reward_lies_between_its_two(process, outcome, one, other):
    fade = Fade(start=min(one, other), end=max(one, other), share=0.7)
    reward = fade.reward(process, outcome, progress=0.5)
    assert min(process, outcome) - 1e-12 <= reward <= max(process, outcome) + 1e-12
