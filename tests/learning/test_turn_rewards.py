"""Rewards of turns become advantages of turns; without them, every number is the same to the last bit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.learn.small_decoder import SmallDecoder

from hud.engine.learn.local_trainer import LocalTrainer
from hud.errors import UsageError
from hud.learning.advantages import compute_advantages, gradient_weight, group_has_signal
from hud.learning.datums import make_batch, payload_of
from hud.learning.turn_rewards import sample_turn_rewards, turn_rewards_of
from hud.learning.wire_types import AdvantageOptions, TrajectoryPayload, TrajectorySample
from hud.trace import AgentStep, Sample, Step, TaskCall, Trace

reward = st.floats(-1, 1, width=32)
group = st.lists(
    st.tuples(reward, st.lists(reward, min_size=1, max_size=4)), min_size=2, max_size=5
)


def conversation(turns, total, rewards=None):
    """A run of several turns of two sampled tokens each, of one group."""
    samples, ids = [], [1]
    for turn in range(turns):
        output = [2 + turn, 7]
        samples.append(
            TrajectorySample(
                prompt_token_ids=list(ids), output_token_ids=output, output_logprobs=[-0.4, -1.1]
            )
        )
        ids += [*output, 3]
    return TrajectoryPayload(samples=samples, reward=total, group_id="g", turn_rewards=rewards)


@given(group, st.floats(0, 1), st.floats(0.125, 4), st.floats(0.5, 2))
def test_the_advantage_of_a_turn_equals_the_definition(runs, discount, weight, scale):
    made = compute_advantages(
        [total for total, _ in runs],
        options=AdvantageOptions(turn_discount=discount, turn_weight=weight),
        reward_scale=scale,
        turn_rewards=[turns for _, turns in runs],
    )
    mean = math.fsum(total for total, _ in runs) / len(runs)
    returns = [
        [
            sum(discount ** (later - turn) * turns[later] for later in range(turn, len(turns)))
            for turn in range(len(turns))
        ]
        for _, turns in runs
    ]
    for place, (total, turns) in enumerate(runs):
        for turn in range(len(turns)):
            peers = [own[turn] for own in returns if len(own) > turn]
            term = returns[place][turn] - math.fsum(peers) / len(peers)
            expected = scale * (total - mean + weight * term)
            computed = made.of_turns(place)[turn] if made.turns else 0.0
            assert computed == pytest.approx(expected, abs=1e-6)


def test_a_turn_carries_what_came_after_it_and_nothing_of_before():
    batch = make_batch(
        [conversation(2, 0.0, [1.0, 0.0]), conversation(2, 0.0, [0.0, 1.0])], loss_fn="ppo"
    )
    first, second = (datum.advantages[datum.mask == 1].tolist() for datum in batch.datums)
    # Both earn 1 from the first turn on; from the second on, only the second run does.
    assert first == [0, 0, -0.5, -0.5]
    assert second == [0, 0, 0.5, 0.5]
    assert batch.metrics["turn_credited_runs:sum"] == 2


def gradient(payloads, **options):
    batch = make_batch(payloads, options=AdvantageOptions(**options))
    trainer = LocalTrainer(SmallDecoder())
    trainer.forward_backward(batch.datums, "importance_sampling")
    return batch, trainer.gradients()


def test_without_rewards_of_turns_the_gradient_is_that_of_the_runs_to_the_last_bit():
    totals, turns = [1.0, 0.3, 0.1, 0.7], [3, 1, 2, 3]
    plain, plain_gradient = gradient(
        [conversation(*pair) for pair in zip(turns, totals, strict=True)]
    )
    mean = np.asarray(totals).mean()
    for datum, total in zip(plain.datums, totals, strict=True):
        assert np.array_equal(datum.advantages, datum.mask * np.float32(total - mean))
    assert not [name for name in plain.metrics if "turn" in name]
    declared = [
        conversation(number, total, [0.5] * number)
        for number, total in zip(turns, totals, strict=True)
    ]
    _, ignored = gradient(declared, turn_weight=0.0)
    _, credited = gradient(declared)
    for name, values in plain_gradient.items():
        assert torch.equal(values, ignored[name]), name
    assert any(not torch.equal(values, credited[name]) for name, values in plain_gradient.items())


def test_a_group_whose_rewards_are_equal_has_signal_by_its_turns():
    runs = [conversation(2, 0.5, [1.0, 0.0]), conversation(2, 0.5, [0.0, 1.0])]
    rewards, turns = [0.5, 0.5], [run.turn_rewards for run in runs]
    options = AdvantageOptions()
    assert len(make_batch(runs).datums) == 2
    assert group_has_signal(rewards, options, turns)
    assert gradient_weight(rewards, options, turns) == pytest.approx(0.125)
    for other in (AdvantageOptions(turn_weight=0), AdvantageOptions(turn_discount=0)):
        signal = group_has_signal(rewards, other, turns)
        assert signal == bool(make_batch(runs, options=other).datums) == bool(other.turn_weight)
    assert not group_has_signal(rewards, options, [[1.0, 0.0], None])


def test_a_run_without_rewards_of_turns_keeps_its_own_advantage():
    runs = [
        conversation(2, 1.0, [1.0, 0.0]),
        conversation(2, 0.5, [0.0, 0.0]),
        conversation(1, 0.0),
    ]
    made = compute_advantages(
        [run.reward for run in runs], turn_rewards=[run.turn_rewards for run in runs]
    )
    assert made.turns == [[1.0, 0.5], [-0.5, 0.0], None]
    assert made.values == [0.5, 0.0, -0.5]


def test_a_null_run_gives_the_turns_credit_to_other_runs():
    totals = [0.0] * 6
    turns = [[float(run == 0), float(run == 1)] for run in range(6)]
    plain = compute_advantages(totals, turn_rewards=turns).turns
    shuffled = [
        compute_advantages(
            totals, options=AdvantageOptions(permutation_seed=seed), turn_rewards=turns
        ).turns
        for seed in range(3)
    ]
    assert any(made != plain for made in shuffled)
    for made in shuffled:
        for turn in range(2):
            assert sorted(own[turn] for own in made) == sorted(own[turn] for own in plain)


def test_rewards_of_turns_are_refused_unless_there_is_a_finite_one_for_each_sample():
    with pytest.raises(UsageError, match="Trajectory 1 has 1 turn_rewards for 2 samples"):
        make_batch([conversation(1, 0.0, [1.0]), conversation(2, 1.0, [1.0])])
    with pytest.raises(UsageError, match="a reward is a finite number"):
        make_batch([conversation(1, 0.0, [1.0]), conversation(1, 1.0, [math.inf])])


def test_a_recorded_run_has_its_rewards_by_sampled_turn():
    sample = Sample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-0.1])
    grade = {"score": 0.5, "turn_rewards": [1.0, 2.0, 4.0, 8.0]}
    trace = Trace(trace_id="a" * 32)
    for own in (None, sample, None, sample):
        trace.record(AgentStep(sample=own))
    assert turn_rewards_of(trace) is None
    trace.record(Step(source="task", task_call=TaskCall(phase="evaluate", name="t", result=grade)))
    assert turn_rewards_of(trace) == [1.0, 2.0, 4.0, 8.0]
    assert sample_turn_rewards(trace) == [6.0, 8.0]
    assert payload_of(trace, 0.5).turn_rewards == [6.0, 8.0]
    assert payload_of(trace, None, failure="timeout").turn_rewards is None
