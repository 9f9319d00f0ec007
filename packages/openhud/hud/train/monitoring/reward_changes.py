"""Changes of the training reward between spans of a run's steps, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from hud.eval.results.paired_differences import SIGNIFICANCE
from hud.train.monitoring.trends import CHANGE_LEVEL, GroupMean, Trend, between, change_of_means

WIDTH = 5
"""Window in steps: rewards of a single step are noisy."""

Metrics = Mapping[str, float]
Steps = Sequence[tuple[int, Metrics]]
"""Metrics of each step, by the number of steps done after it."""


def spans_around(
    values: Sequence[tuple[int, float]], since: int
) -> tuple[list[float], list[float]]:
    """Return the values of the steps before an evaluation, at least the first two, and those of the newest steps after it."""
    split = max(2, sum(step <= since for step, _ in values))
    before, after = ([value for _, value in part] for part in (values[:split], values[split:]))
    return before[-WIDTH:], after[-WIDTH:]


def rise_since(steps: Steps, since: int) -> Trend | None:
    """Return the change of the training reward from the steps before an evaluation (at least the first two) to the newest.

    A reward with a hole in it is gamed within a few steps of the base: five of them would hold most of the rise.
    """
    rows = rewarded(steps)
    split = max(2, sum(step <= since for step, _ in rows))
    return reward_change(rows[:split][-WIDTH:], rows[split:][-WIDTH:])


def fall_from_best(steps: Steps) -> tuple[int, Trend] | None:
    """Return the change of the training reward from its best span of steps, and that span's last step; None without a later
    one.

    A span has `WIDTH` steps, at the beginning at least two. The level is `CHANGE_LEVEL` over the number of spans.
    """
    rows = rewarded(steps)
    ends = range(2, len(rows) - WIDTH + 1)
    if not ends:
        return None
    spans = [rows[max(0, end - WIDTH) : end] for end in ends]
    best = max(spans, key=lambda span: fmean(row["rollout_reward:mean"] for _, row in span))
    change = reward_change(best, rows[-WIDTH:], CHANGE_LEVEL / len(spans))
    return None if change is None else (best[-1][0], change)


def reward_change(before: Steps, after: Steps, level: float = SIGNIFICANCE) -> Trend | None:
    """Return the change of the training reward between two spans of steps.

    Two means alone give a wide interval, so that it comes from the groups of each step where every step has several.
    """
    spans = [[metrics for _, metrics in part] for part in (before, after)]
    if all("rollout_reward:stderr" in metrics for span in spans for metrics in span):
        first, last = ([_group_mean(metrics) for metrics in span] for span in spans)
        return change_of_means(first, last, level)
    means = [[metrics["rollout_reward:mean"] for metrics in span] for span in spans]
    return between(means[0], means[1], level)


def rewarded(steps: Steps) -> Steps:
    """Return the steps with a measured training reward."""
    return [row for row in steps if "rollout_reward:mean" in row[1]]


def _group_mean(metrics: Metrics) -> GroupMean:
    return GroupMean(
        metrics["rollout_reward:mean"],
        metrics["rollout_reward:stderr"],
        int(metrics["rollout_groups:sum"]),
    )
