"""Signal of a group: whether the rewards of a task's runs give a gradient."""

from __future__ import annotations

from collections.abc import Sequence
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
