"""What a batch may be made of: whole groups, finite rewards, no run that was cut off."""

import math
import warnings

import pytest

from hud.environment import Task
from hud.errors import UsageError
from hud.eval.grade import Grade
from hud.eval.run import Run
from hud.learning.wire_types import AdvantageOptions
from hud.trace import AgentStep, Sample
from hud.train import TrajectoryPayload, TrajectorySample
from hud.train.inputs import TrainingWarning, training_inputs, warn_without_signal


def run(reward=1.0, group="a", *, failure=None, stop_reason="done", tokens=True):
    made = Run(task=Task(env="e", id="t"), group_id=group, grade=Grade(reward=reward))
    made.failure_kind = failure
    made.trace.stop_reason = stop_reason
    if tokens:
        sample = Sample(prompt_token_ids=[1, 2], output_token_ids=[3], output_logprobs=[-0.5])
        made.trace.record(AgentStep(sample=sample))
    return made


def payload(reward):
    sample = TrajectorySample(prompt_token_ids=[1], output_token_ids=[2], output_logprobs=[-1.0])
    return TrajectoryPayload(samples=[sample], reward=reward)


@pytest.mark.parametrize("size", [None, 2])
def test_interleaved_groups_are_put_together_by_their_ids(size):
    runs = [run(0.0, "a"), run(1.0, "b"), run(1.0, "a"), run(0.0, "b")]
    found = training_inputs(runs, group_size=size)
    assert [one.trace_id for one in found.inputs] == [runs[i].trace_id for i in (0, 2, 1, 3)]
    assert [one.group_id for one in found.inputs] == ["a", "a", "b", "b"]
    assert found.group_ids is None, "the inputs bring their own"
    assert found.order == [0, 2, 1, 3]


def test_a_size_that_contradicts_the_runs_is_refused_by_name():
    with pytest.raises(UsageError, match="group 'b' has 1 of 2 runs"):
        training_inputs([run(0.0, "a"), run(1.0, "a"), run(1.0, "b")], group_size=2)


def test_a_timed_out_run_does_not_count():
    found = training_inputs([run(0.0), run(1.0, stop_reason="timeout")])
    assert [one.failure for one in found.inputs] == [None, "timeout"]


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(UsageError, match="finite number"):
        training_inputs([run(0.0), run(reward)])
    with pytest.raises(UsageError, match="finite number"):
        training_inputs([payload(0.0), payload(reward)])


def test_a_failed_run_is_sent_with_its_failure_so_that_it_leaves_its_group():
    broken = run(None, failure="environment")
    found = training_inputs([run(0.0), run(1.0), broken])
    assert [one.failure for one in found.inputs] == [None, None, "environment"]


def test_an_agents_own_failure_counts_as_its_reward():
    found = training_inputs([run(0.0, failure="agent"), run(1.0)])
    assert found.inputs[0].failure is None
    assert found.inputs[0].reward == 0.0


def test_a_failed_run_without_a_token_is_an_input_like_any_other():
    (found,) = training_inputs([run(None, "b", failure="grader", tokens=False)]).inputs
    assert (found.samples, found.failure, found.group_id) == ([], "grader", "b")
    with pytest.raises(ValueError, match="at least one sample"):
        TrajectoryPayload(samples=[], reward=0.0)


def test_a_run_without_tokens_goes_by_its_trace_id():
    bare = run(1.0, tokens=False)
    assert training_inputs([run(0.0), bare]).inputs[1] == bare.trace_id


def test_no_signal_in_any_group_is_a_warning():
    flat = training_inputs([run(1.0, "a"), run(1.0, "a"), run(0.0, "b"), run(0.0, "b")])
    with pytest.warns(TrainingWarning, match="standard deviation above 0"):
        warn_without_signal(flat)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_without_signal(training_inputs([run(1.0), run(0.0)]))
        warn_without_signal(training_inputs([run(1.0), run(1.0)], supervised=True))
        warn_without_signal(
            training_inputs([run(1.0), run(1.0)], options=AdvantageOptions(baseline="none"))
        )
        warn_without_signal(training_inputs(["0" * 32, "1" * 32]))


def test_an_empty_batch_is_refused():
    with pytest.raises(UsageError, match="empty"):
        training_inputs([])
