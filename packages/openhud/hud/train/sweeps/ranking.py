"""The ranking of a sweep's combinations by held-out rewards; no combination is named best without evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hud.eval.results.intervals import with_interval
from hud.eval.results.paired_differences import Difference, Rewards, pair
from hud.eval.results.promotion_gate import evidence


@dataclass(frozen=True)
class Trained:
    """Rewards of a finished combination on the held-out tasks."""

    label: str
    setting: str
    """Equal for combinations that differ by the seed alone."""
    before: Rewards
    after: Rewards
    seed: int = 0

    @property
    def mean(self) -> float:
        """Mean over the tasks of their mean rewards after training."""
        return _mean(self.after)


@dataclass(frozen=True)
class Ranking:
    """Result of a comparison of combinations."""

    best: str | None
    """Label of the combination to take; None where the evidence supports none."""
    verdict: str


def rank(trained: Sequence[Trained]) -> Ranking:
    """Return the best setting if it is better than every other one and than the base, by paired intervals over tasks.

    The error of 5% is divided by the number of settings (Bonferroni): a setting that is not the best is named with a probability of at
    most 5%. Seeds are repetitions: a setting's rewards are those of all its seeds, and it has to lead at each.
    """
    settings: dict[str, list[Trained]] = {}
    for combination in trained:
        settings.setdefault(combination.setting, []).append(combination)
    order = sorted(
        settings, key=lambda name: fmean(row.mean for row in settings[name]), reverse=True
    )
    if len(order) < 2:
        means = [row.mean for row in trained]
        if len(means) < 2:
            return Ranking(None, "There is nothing to compare.")
        return Ranking(
            None,
            f"{len(means)} seeds: held-out mean {fmean(means):.3f}, from {min(means):.3f} to {max(means):.3f}. Seeds are repetitions, of "
            "which none is best.",
        )
    top = settings[order[0]]
    after = _pooled([row.after for row in top])
    others = {name: _pooled([row.after for row in settings[name]]) for name in order[1:]}
    others["the base"] = _pooled([row.before for row in top])
    differences = {
        name: difference
        for name, rewards in others.items()
        if (difference := pair(rewards, after, looks=len(others)).overall) is not None
    }
    if len(differences) < len(others):
        return Ranking(None, "No combination is named best: some have no task in common.")
    nearest = min(differences, key=lambda name: _low(differences[name]))
    difference = differences[nearest]
    shown = with_interval(difference.mean, difference.low, difference.high, signed=True)
    if _low(difference) <= 0:
        return Ranking(
            None,
            f"No combination is named best: {order[0]} is the highest, but {shown} over {nearest}. {evidence(difference)}",
        )
    rivals = [row for row in trained if row.setting != order[0]]
    if any(row.mean <= _mean(row.before) for row in top) or any(
        row.mean <= rival.mean for row in top for rival in rivals if row.seed == rival.seed
    ):
        return Ranking(
            None, f"No combination is named best: {order[0]} does not lead with every seed."
        )
    best = max(top, key=lambda row: row.mean)
    return Ranking(best.label, f"{best.label} is the best: {shown} over {nearest}, the nearest.")


def _low(difference: Difference) -> float:
    return float("-inf") if difference.low is None else difference.low


def _mean(rewards: Rewards) -> float:
    by_task = [[reward for reward in task if reward is not None] for task in rewards.values()]
    return fmean(fmean(task) for task in by_task if task)


def _pooled(parts: Sequence[Rewards]) -> Rewards:
    """Return the rewards of all parts by task."""
    return {slug: [reward for part in parts for reward in part.get(slug, ())] for slug in parts[0]}
