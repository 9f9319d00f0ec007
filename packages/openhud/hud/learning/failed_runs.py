"""Failed and timed-out runs: whether their reward counts, and their effect on their group.

Every caller decides by these functions: the training loop, the training API and the store's windows. Options and defaults are
`AdvantageOptions` (`hud.learning.wire_types`); groups are formed in `hud.learning.groups`. Works on failure kinds and group
labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hud.learning.wire_types import AdvantageOptions, Failure


def counted_runs(
    failures: Sequence[str | None], labels: Sequence[str], options: AdvantageOptions
) -> list[bool]:
    """Return True for each run that enters its group's mean, by `options.failed_runs` and `options.min_group_size`."""
    failed = [not measures_policy(failure) for failure in failures]
    if options.failed_runs == "zero":
        return [True] * len(failed)
    sound = Counter(label for label, bad in zip(labels, failed, strict=True) if not bad)
    broken = {label for label, bad in zip(labels, failed, strict=True) if bad}
    fewest = options.min_group_size
    left_out = {
        label for label in broken if options.failed_runs == "drop_group" or sound[label] < fewest
    }
    return [not bad and label not in left_out for label, bad in zip(labels, failed, strict=True)]


def measures_policy(failure: str | None) -> bool:
    """Return whether a run's reward counts: of runs without a failure, and of failures of the agent itself."""
    return failure in (None, "agent")


def failure_of(
    reward: float | None, kind: Failure | None, stop_reason: str | None
) -> Failure | None:
    """Return the failure for which the reward of a finished run does not count; None if it counts."""
    if stop_reason == "timeout":
        return "timeout"
    if not measures_policy(kind):
        return kind
    return "infrastructure" if reward is None else None
