"""Statistics of a job: intervals, pass@k, standard deviations, tokens, latency, cost.

Runs of one task are not independent, so the interval of the mean clusters them by task. Unmeasured runs (reward None)
enter the count of failures only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb

import numpy as np
import numpy.typing as npt

from hud.eval.results.intervals import Interval, clustered_interval
from hud.eval.results.run_summary import RunSummary
from hud.graders.group_signal import has_signal

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ModelPrice:
    """US dollars per million tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    """None: as other prompt tokens."""


@dataclass(frozen=True)
class JobStatistics:
    """Statistics of a job. Fields are None without data."""

    runs: int
    measured: int
    tasks: int
    failures: dict[str, int]
    """Failed runs by failure kind; those of kind `agent` are measured, with reward 0."""
    stop_reasons: dict[str, int]
    mean_reward: float | None
    interval: Interval | None
    """95% interval of the mean reward, clustered by task. None for fewer than two tasks."""
    pass_at_k: dict[int, float]
    """pass@k: by k, the probability that at least one of k runs passes, averaged over tasks with k measured runs or more."""
    pass_hat_k: dict[int, float]
    """pass^k: by k, the probability that all of k runs pass, over the same tasks."""
    tasks_with_k: dict[int, int]
    """By k, the number of tasks with k measured runs or more, over which pass@k and pass^k are averaged."""
    group_spread: float | None
    """Reward standard deviation within groups, averaged over groups of two or more."""
    never_passed: list[str]
    """Slugs of tasks with two or more runs of equal reward, below the pass mark."""
    always_passed: list[str]
    """Slugs of tasks with two or more runs of equal reward, at or above the pass mark."""
    task_rewards: dict[str, float]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    mean_turns: float | None
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock time of a run, in seconds: `p50`, `p90`, `p99`, `max`."""
    cost_usd: float | None = None
    """Cost of the runs with a known price; None if there is none."""
    unpriced_runs: int = 0

    def _repr_html_(self) -> str:
        from hud.eval.results.notebook import statistics_html

        return statistics_html(self)

    def over_tasks(self, k: int) -> str:
        """Return over how many tasks pass@k is averaged: ` (3 of 5 tasks)`; "" if all tasks have k measured runs."""
        counted = self.tasks_with_k.get(k, 0)
        return "" if counted == self.tasks else f" ({counted:,} of {self.tasks:,} tasks)"

    @property
    def no_signal(self) -> list[str]:
        """Slugs of tasks without signal: all their runs have equal rewards."""
        return sorted([*self.never_passed, *self.always_passed])


def job_statistics(
    runs: Sequence[RunSummary],
    *,
    pass_mark: float = 1.0,
    prices: Mapping[str, ModelPrice] | None = None,
) -> JobStatistics:
    """Return the statistics of `runs`; a run passes when its reward reaches `pass_mark`."""
    rewards = rewards_by_task(runs)
    measured = [reward for group in rewards.values() for reward in group]
    flat = {
        slug: group for slug, group in rewards.items() if len(group) > 1 and not has_signal(group)
    }
    turns = [run.turns for run in runs if run.turns]
    costs = [run_cost(run, prices or {}) for run in runs]
    known_costs = [cost for cost in costs if cost is not None]
    return JobStatistics(
        runs=len(runs),
        measured=len(measured),
        tasks=len({run.slug for run in runs}),
        failures=dict(Counter(run.failure_kind for run in runs if run.failure_kind is not None)),
        stop_reasons=dict(Counter(run.stop_reason for run in runs if run.stop_reason is not None)),
        mean_reward=float(np.mean(measured)) if measured else None,
        interval=clustered_interval(list(rewards.values())),
        pass_at_k=_over_tasks(rewards, pass_mark, pass_at_k),
        pass_hat_k=_over_tasks(rewards, pass_mark, pass_hat_k),
        tasks_with_k={
            k: sum(len(group) >= k for group in rewards.values()) for k in _sizes(rewards)
        },
        group_spread=group_spread(runs),
        never_passed=[slug for slug, group in flat.items() if group[0] < pass_mark],
        always_passed=[slug for slug, group in flat.items() if group[0] >= pass_mark],
        task_rewards={slug: float(np.mean(group)) for slug, group in rewards.items()},
        prompt_tokens=sum(run.prompt_tokens for run in runs),
        completion_tokens=sum(run.completion_tokens for run in runs),
        cached_tokens=sum(run.cached_tokens for run in runs),
        mean_turns=float(np.mean(turns)) if turns else None,
        seconds=percentiles([run.seconds for run in runs if run.seconds is not None]),
        cost_usd=sum(known_costs) if known_costs else None,
        unpriced_runs=len(costs) - len(known_costs),
    )


def rewards_by_task(runs: Sequence[RunSummary]) -> dict[str, list[float]]:
    """Return the measured rewards of each task, in order of first appearance."""
    rewards: dict[str, list[float]] = {}
    for run in runs:
        if run.reward is not None:
            rewards.setdefault(run.slug, []).append(run.reward)
    return rewards


def pass_at_k(runs: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `passed` of `runs` (Chen et al. 2021)."""
    return 1.0 - comb(runs - passed, k) / comb(runs, k)


def pass_hat_k(runs: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of pass^k (tau-bench), the probability that all of `k` runs pass."""
    return comb(passed, k) / comb(runs, k)


def group_spread(runs: Sequence[RunSummary]) -> float | None:
    """Return the mean standard deviation of rewards within groups of two or more; None without any."""
    groups: dict[tuple[str, str | None], list[float]] = {}
    for run in runs:
        if run.reward is not None:
            groups.setdefault((run.slug, run.group_id), []).append(run.reward)
    spreads = [float(np.std(group)) for group in groups.values() if len(group) > 1]
    return float(np.mean(spreads)) if spreads else None


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return `p50`, `p90`, `p99` and `max` of `values`; {} for no values."""
    if not values:
        return {}
    p50, p90, p99 = np.quantile(np.asarray(values, dtype=np.float64), [0.5, 0.9, 0.99])
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99), "max": float(max(values))}


def run_cost(run: RunSummary, prices: Mapping[str, ModelPrice]) -> float | None:
    """Return the cost of a run in US dollars: its server's, else by the price of its model."""
    if run.cost_usd is not None:
        return run.cost_usd
    price = prices.get(run.model or "")
    if price is None:
        return None
    cached_price = price.prompt if price.cached is None else price.cached
    fresh = run.prompt_tokens - run.cached_tokens
    total = (
        fresh * price.prompt
        + run.cached_tokens * cached_price
        + run.completion_tokens * price.completion
    )
    return total / 1_000_000


def _over_tasks(
    rewards: Mapping[str, list[float]], pass_mark: float, estimate: Callable[[int, int, int], float]
) -> dict[int, float]:
    """Return the estimate for each of `_sizes`, averaged over tasks that have k runs."""
    counts = [
        (len(group), sum(reward >= pass_mark for reward in group)) for group in rewards.values()
    ]
    return {
        k: float(np.mean([estimate(runs, passed, k) for runs, passed in counts if runs >= k]))
        for k in _sizes(rewards)
    }


def _sizes(rewards: Mapping[str, list[float]]) -> list[int]:
    """Return the values of k: 1, 2, 4, ... and the largest number of measured runs of a task."""
    largest = max(map(len, rewards.values()), default=0)
    return sorted({2**power for power in range(largest.bit_length())} | {largest} - {0})
