"""A group has signal exactly if some advantage of it is not 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.graders.group_signal import has_signal
from hud.learning.advantages import gradient_weight
from hud.learning.wire_types import AdvantageOptions

REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0]), min_size=1, max_size=7)


@pytest.mark.slow
@given(REWARDS, st.sampled_from(["mean", "leave_one_out", "none"]))
def test_signal_is_a_gradient(rewards, baseline):
    weight = gradient_weight(rewards, AdvantageOptions(baseline=baseline))
    assert has_signal(rewards, baseline) == (weight > 0)


@pytest.mark.parametrize(
    ("rewards", "baseline", "expected"),
    [
        ([0.1] * 3, "mean", False),  # Their mean is 0.10000000000000002.
        ([1.0, 1.0], "none", True),
        ([0.0, 0.0], "none", False),
        ([0.0, 1.0], "leave_one_out", True),
        ([], "mean", False),
    ],
)
def test_equal_rewards_have_signal_only_without_a_baseline(rewards, baseline, expected):
    assert has_signal(rewards, baseline) == expected
