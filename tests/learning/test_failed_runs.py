"""Effect of failed and timed-out runs on their groups: one answer for every caller."""

import pytest

from hud.learning.failed_runs import counted_runs, failure_of
from hud.learning.wire_types import AdvantageOptions
from hud.train.config import TrainConfig


def test_one_default_for_failed_runs_everywhere():
    assert AdvantageOptions().failed_runs == TrainConfig(model="m").failed_runs == "drop_run"
    assert TrainConfig(model="m").advantages == AdvantageOptions()


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("drop_run", [True, True, False, False, False, True]),
        ("drop_group", [False, False, False, False, False, True]),
        ("zero", [True] * 6),
    ],
)
@pytest.mark.parametrize("kind", ["environment", "grader", "infrastructure", "timeout"])
def test_a_failure_that_is_not_the_agents_enters_no_mean(policy, counts, kind):
    """By default only the failed run leaves; a group with fewer than two runs left is dropped."""
    failures = [None, "agent", kind, None, kind, None]
    labels = ["a", "a", "a", "b", "b", "sound"]
    assert counted_runs(failures, labels, AdvantageOptions(failed_runs=policy)) == counts


def test_the_failure_of_a_run_whose_reward_does_not_count():
    assert failure_of(1.0, None, "done") is None
    assert failure_of(0.0, "agent", "done") is None
    assert failure_of(0.0, None, "timeout") == "timeout"
    assert failure_of(None, "grader", None) == "grader"
    assert failure_of(None, None, None) == "infrastructure"
