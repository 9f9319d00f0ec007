"""What a batch may be made of: whole groups, finite rewards, no run that was cut off."""

import math
import warnings

import pytest

from hud.environment import Task
from hud.errors import UsageError
from hud.eval.grade import Grade
from hud.eval.run import Run
from hud.trace import AgentStep, Sample
from hud.train import AdvantageOptions, TrajectoryPayload, TrajectorySample
from hud.train.inputs import TrainingWarning, prepare


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


def test_interleaved_groups_are_put_together_by_their_ids():
    runs = [run(0.0, "a"), run(1.0, "b"), run(1.0, "a"), run(0.0, "b")]
    found = prepare(runs, group_size=2)
    assert [one.trace_id for one in found.inputs] == [runs[i].trace_id for i in (0, 2, 1, 3)]
    assert found.group_ids == ["a", "a", "b", "b"]
    assert found.order == [0, 2, 1, 3]


def test_an_incomplete_group_is_refused_by_name():
    with pytest.raises(UsageError, match="Group 'b' has 1 of 2 runs"):
        prepare([run(0.0, "a"), run(1.0, "a"), run(1.0, "b")], group_size=2)
    with pytest.raises(UsageError, match="3 runs do not divide into groups of 2"):
        prepare([payload(0.0), payload(1.0), payload(1.0)], group_size=2)


def test_without_a_size_the_batch_is_one_group():
    found = prepare([run(0.0, "a"), run(1.0, "b")])
    assert (found.group_ids, found.group_size) == (None, None)


def test_a_timed_out_run_is_refused():
    with pytest.raises(UsageError, match="timed out"):
        prepare([run(0.0), run(1.0, stop_reason="timeout")])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(UsageError, match="finite number"):
        prepare([run(0.0), run(reward)])
    with pytest.raises(UsageError, match="finite number"):
        prepare([payload(0.0), payload(reward)])


def test_a_failed_run_is_refused_unless_one_says_what_becomes_of_it():
    broken = run(None, failure="environment")
    with pytest.raises(UsageError, match="no reward of its own"):
        prepare([run(0.0), run(1.0), broken])
    found = prepare([run(0.0), run(1.0), broken], options=AdvantageOptions(failed_runs="drop_run"))
    assert [one.failure for one in found.inputs] == [None, None, "environment"]


def test_an_agents_own_failure_counts_as_its_reward():
    found = prepare([run(0.0, failure="agent"), run(1.0)])
    assert found.inputs[0].failure is None
    assert found.inputs[0].reward == 0.0


def test_failed_runs_without_a_token_leave_with_their_group_or_alone():
    groups = [
        run(0.0, "a"),
        run(1.0, "a"),
        run(0.0, "b"),
        run(None, "b", failure="grader", tokens=False),
    ]
    ids = [one.group_id for one in groups]
    alone = prepare(groups, group_ids=ids, options=AdvantageOptions(failed_runs="drop_run"))
    assert alone.group_ids == ["a", "a", "b"]
    together = prepare(groups, group_ids=ids, options=AdvantageOptions(failed_runs="drop_group"))
    assert together.group_ids == ["a", "a"]


def test_a_run_without_tokens_goes_by_its_trace_id():
    bare = run(1.0, tokens=False)
    assert prepare([run(0.0), bare]).inputs[1] == bare.trace_id


def test_no_spread_in_any_group_is_a_warning():
    with pytest.warns(TrainingWarning, match="No group of the batch has any spread"):
        prepare([run(1.0, "a"), run(1.0, "a")], group_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare([run(1.0), run(0.0)])
        prepare([run(1.0), run(1.0)], supervised=True)


def test_an_empty_batch_is_refused():
    with pytest.raises(UsageError, match="empty"):
        prepare([])
