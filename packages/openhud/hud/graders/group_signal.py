"""Signal of a group: whether the rewards of a task's runs give a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest
from typing import Literal

Baseline = Literal["mean", "leave_one_out", "none"]
"""Value subtracted from a reward: the group's mean, the mean of the group's other runs, or none."""


def has_signal(rewards: Sequence[float], baseline: Baseline = "mean") -> bool:
    """Return whether the measured rewards of a group, from 0 to 1 each, give any run an advantage other than 0.

    With a baseline these are rewards that differ, compared exactly: the mean of equal floats may differ from them in
    the last bit. Without one it is any reward other than 0.
    """
    if baseline == "none":
        return any(rewards)
    return len(set(rewards)) > 1


def turns_have_signal(turn_rewards: Sequence[Sequence[float]]) -> bool:
    """Return whether the runs of a group differ in the rewards from some turn on: then its turns have advantages of their own."""
    returns = [[*accumulate(reversed(rewards))][::-1] for rewards in turn_rewards]
    at_turns = zip_longest(*returns)
    return any(len({value for value in values if value is not None}) > 1 for values in at_turns)
