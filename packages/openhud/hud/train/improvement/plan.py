"""The plan of an improvement: least cost and highest gain of each rung, and its share of the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.train.budgeted.budget import Budget
    from hud.train.improvement.config import ImproveConfig, RungName
    from hud.train.improvement.measurement import Standing

LIKELY = 0.5
"""Share of the most that a rung may gain which is expected of it before it is climbed."""
WORTH = 0.01
"""Gain of mean reward below which a rung is not climbed."""
PROMPT_ROLLOUTS = (8, 24)
"""Rollouts of a minibatch played twice, and of the validation tasks at most."""
SHARES: dict[str, float] = {"prompt": 0.35, "imitate": 0.0, "distil": 0.5, "reinforce": 1.0}
"""Share of the rollouts that are left, without those of comparisons, which a rung may take."""


@dataclass(frozen=True)
class PlannedRung:
    """A rung before it is climbed."""

    name: RungName
    least: int
    """Rollouts without which it cannot be climbed, without those of its comparison."""
    most: int
    """Rollouts that it may take."""
    judged: int
    """Rollouts of its comparison on held-out tasks."""
    gain: float | None
    """Gain at most, on the measured tasks; None before the policy is measured."""

    @property
    def rate(self) -> float:
        """Expected gain per rollout, comparison included."""
        return LIKELY * (self.gain or 0.0) / max(1, self.most + self.judged)


def measured_rollouts(config: ImproveConfig, tasks: int) -> int:
    """Return the rollouts of the measurement: of the policy, and one run a task of each other model."""
    measured = min(config.measured_tasks, tasks)
    others = {*config.against, *([config.teacher] if config.teacher else [])}
    return measured * (config.group + len(others))


def planned(
    config: ImproveConfig,
    budget: Budget,
    spent: int,
    tasks: int,
    held_out: int,
    rungs: list[RungName],
    standing: Standing | None,
) -> list[PlannedRung]:
    """Return the rungs that are left, with their shares of the rollouts that are left.

    Each may take its share of what remains when the rungs before it have taken theirs. Without a limit of rollouts, a rung may
    take 2,000, and time or money bounds it.
    """
    comparison = held_out * config.eval_group
    # The head is played once, and each rung's result.
    left = 2_000 * len(rungs) if budget.rollouts is None else budget.rollouts - spent
    left = max(0, left - comparison * (len(rungs) + 1))
    if standing is None:
        left = max(0, left - measured_rollouts(config, tasks))
    plan = []
    for name in rungs:
        most = int(left * SHARES[name])
        left -= most
        plan.append(
            PlannedRung(
                name,
                least_rollouts(config, name, tasks),
                most,
                comparison,
                _gain(name, config, standing),
            )
        )
    return plan


def least_rollouts(config: ImproveConfig, rung: RungName, tasks: int) -> int:
    """Return the rollouts of the smallest part of a rung."""
    if rung == "imitate":
        return 0
    if rung == "prompt":
        twice, validation = PROMPT_ROLLOUTS
        return twice + 2 * min(validation, tasks)
    group = 1 if rung == "distil" else config.group
    return min(config.tasks_per_step, tasks) * group * config.steps_at_once


def _gain(rung: RungName, config: ImproveConfig, standing: Standing | None) -> float | None:
    """Return the most that a rung may gain on the measured tasks."""
    if standing is None:
        return None
    if rung == "prompt":
        return standing.headroom()
    if rung == "distil":
        return standing.headroom(config.teacher)
    return standing.within_reach if standing.with_signal else 0.0


def reason_to_skip(rung: PlannedRung) -> str | None:
    """Return the reason why a rung is not climbed; None: it is."""
    if rung.gain is not None and rung.gain < WORTH:
        return {
            "prompt": "the measured tasks leave no headroom",
            "imitate": "no run of a task was better than the others: there is nothing to imitate",
            "distil": "the teacher earns no more than the policy on the measured tasks",
            "reinforce": "all runs of a task earned the same: groups have no signal",
        }[rung.name]
    if rung.most < rung.least:
        return f"its share of the budget, {rung.most:,} rollouts, does not hold its smallest part of {rung.least:,}"
    return None
