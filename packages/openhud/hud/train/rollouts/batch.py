"""The batch of a step: groups to train on, dropped groups, and the metrics of both.

Groups without signal are counted, and dropped before any forward pass. Works on runs and rewards; independent of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev

from hud.eval.run import Run
from hud.graders.shaping import FADE
from hud.learning.advantages import gradient_weight, group_has_signal
from hud.learning.failed_runs import counted_runs, failure_of
from hud.learning.turn_rewards import TurnRewards
from hud.trace import AgentStep
from hud.train.config import TrainConfig
from hud.train.monitoring.alarms import COMPONENT

MOST_COMPONENTS = 20
"""Maximum components of a grade that become metrics of a step."""
LONGEST_NAME = 60
"""Characters of a component's name in its metric."""


@dataclass
class RolloutBatch:
    """The rollouts of one step."""

    groups: list[list[Run]] = field(default_factory=list)
    """Groups with signal, each the runs of one task."""
    complete: bool = False
    """True once the step has all its groups; False if it was stopped before."""
    measured: list[Run] = field(default_factory=list)
    """Every measured run, including those of dropped groups."""
    subagent_runs: list[Run] = field(default_factory=list)
    """Subagents' runs of all levels, by any model."""
    weights: dict[str, float] = field(default_factory=dict)
    """Gradient weight of the measured groups, by the task's slug; 0: no signal."""
    no_signal: int = 0
    broken: int = 0
    """Number of groups dropped for failures that were not the agent's."""
    stale: int = 0
    """Number of groups with signal dropped for their policy lag."""
    replaced: int = 0
    """Number of tasks sampled as replacements of groups without signal."""
    failed_runs: int = 0
    broken_attempts: int = 0
    """Number of attempts that infrastructure broke, whether they were repeated or not."""
    tokens: int = 0
    """Number of tokens sampled by the policy."""

    def add(self, runs: list[Run], config: TrainConfig, *, complete_only: bool = True) -> None:
        """Add groups of runs. With `complete_only`, a group with fewer than `config.group` runs is dropped."""
        self.subagent_runs += _called_by(runs)
        groups: dict[str, list[Run]] = {}
        for run in runs:
            self.tokens += run.trace.usage.completion_tokens
            self.broken_attempts += run.broken_attempts + (run.failure_kind == "infrastructure")
            if _failure(run) is None:
                self.measured.append(run)
            else:
                self.failed_runs += 1
            groups.setdefault(run.group_id or "", []).append(run)
        for group in groups.values():
            counted = _counted(group, config)
            if not counted or (complete_only and len(group) < config.group):
                self.broken += 1
                continue
            rewards = [reward for reward, _ in counted]
            turn_rewards = [own for _, own in counted]
            options = config.advantages
            self.weights[group[0].slug] = gradient_weight(rewards, options, turn_rewards)
            signal = group_has_signal(rewards, options, turn_rewards)
            if signal or config.teacher is not None:  # A teacher tells runs of equal rewards apart.
                self.groups.append(group)
            else:
                self.no_signal += 1

    def of_subagent(self, model: str, config: TrainConfig) -> RolloutBatch:
        """Return a model's subagent runs as a batch.

        The n-th calls of a tool in a caller's attempts are a group. Not every attempt makes the call, so groups have any
        size from 2.
        """
        own = RolloutBatch(complete=self.complete)
        own.add(
            [run for run in self.subagent_runs if run.model == model], config, complete_only=False
        )
        own.subagent_runs.clear()
        return own

    @property
    def drawn(self) -> int:
        """Number of played groups."""
        return len(self.groups) + self.no_signal + self.broken + self.stale

    @property
    def reward(self) -> float | None:
        """Mean over every measured run; None if there is none."""
        return _mean(self.measured)

    @property
    def earned_nothing(self) -> bool:
        """True if runs were measured and none has a reward above 0."""
        rewards = [run.reward for run in self.measured if run.reward is not None]
        return bool(rewards) and max(rewards) <= 0.0

    @property
    def subagent_tokens(self) -> int:
        """Number of tokens sampled by subagents."""
        return sum(run.trace.usage.completion_tokens for run in self.subagent_runs)

    def metrics(self) -> dict[str, float]:
        """Return the counts and means by metric name."""
        metrics = {
            "groups_drawn:sum": float(self.drawn),
            "groups_without_spread:sum": float(self.no_signal),
            "groups_broken:sum": float(self.broken),
            "groups_replaced:sum": float(self.replaced),
            "groups_stale:sum": float(self.stale),
            "failed_rollouts:sum": float(self.failed_runs),
            "sampled_tokens:sum": float(self.tokens),
        }
        if self.reward is not None:
            metrics["rollout_reward:mean"] = self.reward
            metrics |= _spread(self.measured)
            usages = [run.trace.usage for run in self.measured]
            metrics["turns:mean"] = fmean(usage.llm_call_count for usage in usages)
            metrics["rollout_tokens:mean"] = fmean(usage.completion_tokens for usage in usages)
            metrics |= _entropy(self.measured)
        shares = [
            float(part["value"])
            for run in self.measured
            for part in run.grade.subscores
            if part.get("name") == FADE
        ]
        if shares:
            metrics["fade_share:mean"] = fmean(shares)
        metrics |= _components(self.measured)
        if self.subagent_runs:
            metrics["subagent_runs:sum"] = float(len(self.subagent_runs))
            metrics["subagent_tokens:sum"] = float(self.subagent_tokens)
            if (earned := _mean(self.subagent_runs)) is not None:
                metrics["subagent_reward:mean"] = earned
        return metrics


def _components(runs: Iterable[Run]) -> dict[str, float]:
    """Return the mean of each component that is a weighted part of the runs' grades, of at most `MOST_COMPONENTS`."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for part in run.grade.subscores:
            name, value, weight = part.get("name"), part.get("value"), part.get("weight")
            if not isinstance(name, str) or not isinstance(value, int | float) or not weight:
                continue
            if name in values or len(values) < MOST_COMPONENTS:
                values.setdefault(name, []).append(float(value))
    return {
        f"{COMPONENT}{name[:LONGEST_NAME]}:mean": fmean(component_values)
        for name, component_values in values.items()
    }


def _entropy(runs: Iterable[Run]) -> dict[str, float]:
    """Return the mean negative logprob of the runs' sampled tokens, in nats a token; nothing for runs without tokens here.

    The trainer measures the same of the groups that it learns from. Groups without signal, those of solved tasks among
    them, count here: a mean over the others grows as tasks are solved.
    """
    logprobs = [
        logprob
        for run in runs
        for step in run.trace.steps
        if isinstance(step, AgentStep) and step.sample is not None
        for logprob in step.sample.output_logprobs
    ]
    return {"entropy:mean": -fmean(logprobs)} if logprobs else {}


def _spread(runs: Iterable[Run]) -> dict[str, float]:
    """Return the standard error of the mean reward over groups, and their number; nothing for fewer than two."""
    groups: dict[str | None, list[float]] = {}
    for run in runs:
        if run.reward is not None:
            groups.setdefault(run.group_id, []).append(run.reward)
    means = [fmean(rewards) for rewards in groups.values()]
    if len(means) < 2:
        return {}
    return {
        "rollout_reward:stderr": stdev(means) / sqrt(len(means)),
        "rollout_groups:sum": float(len(means)),
    }


def _mean(runs: Iterable[Run]) -> float | None:
    rewards = [run.reward for run in runs if run.reward is not None]
    return fmean(rewards) if rewards else None


def _called_by(runs: Iterable[Run]) -> list[Run]:
    """Return the subagents' runs of `runs`, of all levels."""
    return [
        called for run in runs for child in run.children for called in (child, *_called_by([child]))
    ]


def _failure(run: Run) -> str | None:
    return failure_of(run.reward, run.failure_kind, run.trace.stop_reason)


def _counted(group: list[Run], config: TrainConfig) -> list[tuple[float, TurnRewards]]:
    """Return the rewards of the runs that count in a group, and of their turns; empty if too many of its runs failed."""
    failures = [_failure(run) for run in group]
    counted = counted_runs(failures, [""] * len(group), config.advantages)
    return [
        (run.reward, run.grade.turn_rewards)
        if failure is None and run.reward is not None
        else (0.0, None)
        for run, failure, counts in zip(group, failures, counted, strict=True)
        if counts
    ]
