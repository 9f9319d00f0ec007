"""Report of an audit: the highest reward without the work for each task, and what else is wrong with a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from hud.eval.results.intervals import clustered_interval

FLOOR = 0.05
"""Reward without the work that a task may give."""
GUESS, FORMAT = "guess", "format"
ENOUGH = 8
"""Tasks of a template from which on the mean of other tasks' answers is measured."""


@dataclass(frozen=True)
class TaskAudit:
    """Audit of one task."""

    slug: str
    label: str
    rewards: Mapping[str, float]
    """Reward of each exploit that was measured; those of `guess` and `format` are of all tasks of the template."""
    floor: float
    """Reward without the work that is allowed: the audit's floor, or the chance level that the task declares."""
    solved: float | None = None
    """Reward of the agent that does the work, where one played."""

    @property
    def highest(self) -> float:
        """Highest reward without the work; 0.0 where nothing was measured."""
        return max(self.rewards.values(), default=0.0)

    @property
    def exploit(self) -> str:
        """Name of the first exploit that earned the highest reward; empty where none earned any."""
        highest = self.highest
        return next((name for name, reward in self.rewards.items() if 0 < reward == highest), "")

    @property
    def above(self) -> bool:
        """True where an exploit earned more than the floor."""
        return self.highest > self.floor + 1e-9


@dataclass(frozen=True)
class ExploitAudit:
    """One exploit, over all tasks that it applies to."""

    name: str
    tasks: int
    mean: float
    highest: float


@dataclass(frozen=True)
class Finding:
    """Something about a reward that a person should look at."""

    kind: str
    sentence: str
    slugs: tuple[str, ...]


@dataclass(frozen=True)
class AuditReport:
    """Audit of a taskset."""

    name: str
    tasks: tuple[TaskAudit, ...]
    """The highest reward first."""
    findings: tuple[Finding, ...]
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    """Tasks with runs that could not be measured, with the first reason."""
    complete: bool = True
    """False where it was stopped before every exploit was played."""

    @property
    def mean(self) -> float:
        """Mean over tasks of the highest reward without the work."""
        return fmean(task.highest for task in self.tasks) if self.tasks else 0.0

    @property
    def highest(self) -> float:
        """Highest reward without the work of any task."""
        return max((task.highest for task in self.tasks), default=0.0)

    @property
    def above(self) -> list[TaskAudit]:
        """Tasks that give more than their floor."""
        return [task for task in self.tasks if task.above]

    @property
    def exploits(self) -> list[ExploitAudit]:
        """Exploits in the order in which they were played."""
        names = dict.fromkeys(name for task in self.tasks for name in task.rewards)
        earned = {
            name: [task.rewards[name] for task in self.tasks if name in task.rewards]
            for name in names
        }
        return [
            ExploitAudit(name, len(rewards), fmean(rewards), max(rewards))
            for name, rewards in earned.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "name": self.name,
            "mean": self.mean,
            "highest": self.highest,
            "above": [task.slug for task in self.above],
            "complete": self.complete,
            "exploits": [asdict(exploit) for exploit in self.exploits],
            "tasks": [
                {
                    "slug": task.slug,
                    "highest": task.highest,
                    "exploit": task.exploit,
                    "floor": task.floor,
                    "above": task.above,
                    "solved": task.solved,
                    "rewards": dict(task.rewards),
                }
                for task in self.tasks
            ],
            "findings": [asdict(finding) for finding in self.findings],
            "unmeasured": dict(self.unmeasured),
        }


def with_luck_removed(
    rewards: Mapping[str, Mapping[str, float]], templates: Mapping[str, object]
) -> dict[str, dict[str, float]]:
    """Return rewards by task and exploit, those of other tasks' answers as what they earn on all tasks of a template.

    `guess` and `format` are right by luck on some task: their reward is the low end of the 95% interval of the mean. With
    fewer than `ENOUGH` tasks the mean says nothing; `guess` is then left out.
    """
    adjusted = {slug: dict(earned) for slug, earned in rewards.items()}
    for name in (GUESS, FORMAT):
        played: dict[object, list[str]] = {}
        for slug, earned in rewards.items():
            if name in earned:
                played.setdefault(templates[slug], []).append(slug)
        for slugs in played.values():
            level = clustered_interval([[rewards[slug][name]] for slug in slugs])
            for slug in slugs:
                if len(slugs) >= ENOUGH and level is not None:
                    adjusted[slug][name] = level.low
                elif name == GUESS:
                    del adjusted[slug][name]
    return adjusted


def constant(rewards: Sequence[float], solved: float | None) -> bool:
    """True where every exploit earned the same, and so did the work or, where nobody did it, the same is not nothing."""
    if len(rewards) < 3 or len(set(rewards)) > 1:
        return False
    return rewards[0] != 0 if solved is None else solved == rewards[0]
