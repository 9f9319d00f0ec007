"""Signal of a job's tasks: their shares of the expected gradient, and a curriculum by it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev, variance
from typing import Any, Literal

from hud.environment.templates.task_identity import equal_args_of
from hud.errors import UsageError
from hud.eval.results.job_statistics import pass_at_k
from hud.eval.results.run_summary import RunSummary
from hud.graders.group_signal import has_signal, turns_have_signal
from hud.trace.json_values import plain_value

NEAR = 0.8
"""Minimum Jaccard similarity of near-duplicates, over character 5-grams of their prose."""
MOST_EMPTY = 0.5
"""Maximum probability of a group without signal for stage `now`."""
_GRAM, _PROSE = 5, 5

Stage = Literal["now", "later", "done", "duplicate"]


@dataclass(frozen=True)
class TaskSignal:
    """Signal of a task: reward standard deviation, and share of the gradient."""

    slug: str
    runs: int
    """Number of measured runs."""
    mean: float
    deviation: float
    """Reward standard deviation."""
    pass_at_1: float
    pass_at_k: float | None
    """Unbiased pass@k; None with fewer than `k` runs."""
    groups: int
    """Number of recorded groups with two or more measured runs."""
    without_signal: int
    """Number of groups with equal rewards, of runs and of turns."""
    empty: float
    """Probability of equal rewards in a group of `k`: sum of p^k over the recorded rewards; at most the recorded share of groups without
    signal where turns have any."""
    weight: float
    """Expected mean squared advantage of a group of `k`, (k - 1) / k times the unbiased variance, over the tasks' total."""
    duplicate_of: str | None
    """The first task of which this one is a near-duplicate, or None."""
    stage: Stage
    """`now`: has signal; `later`: no signal yet; `done`: passes nearly always; `duplicate`: repeats another."""


@dataclass(frozen=True)
class JobSignal:
    """Signal of a job's tasks, at groups of `k` runs."""

    k: int
    tasks: tuple[TaskSignal, ...]
    """Tasks by weight, descending."""

    @property
    def without_signal(self) -> float:
        """Share of the recorded groups without signal; 1.0 without groups."""
        groups = sum(task.groups for task in self.tasks)
        return sum(task.without_signal for task in self.tasks) / groups if groups else 1.0

    @property
    def curriculum(self) -> dict[Stage, list[str]]:
        """Slugs of each stage, in curriculum order: `later` by descending mean."""
        slugs_by_stage: dict[Stage, list[str]] = {
            "now": [],
            "later": [],
            "done": [],
            "duplicate": [],
        }
        later = sorted(self.tasks, key=lambda task: -task.mean)
        for task in [task for task in self.tasks if task.stage != "later"] + later:
            if task.slug not in slugs_by_stage[task.stage]:
                slugs_by_stage[task.stage].append(task.slug)
        return slugs_by_stage

    def as_dict(self) -> dict[str, Any]:
        """Return the signal as plain data."""
        return {
            "k": self.k,
            "without_signal": self.without_signal,
            "tasks": [asdict(task) for task in self.tasks],
            "curriculum": self.curriculum,
        }


def job_signal(
    runs: Sequence[RunSummary],
    tasks: Mapping[str, Mapping[str, Any]],
    *,
    k: int | None = None,
    pass_mark: float = 1.0,
) -> JobSignal:
    """Return the signal of a job's tasks; `tasks` are their rows (`id`, `args`) by slug.

    `k` None: the largest recorded group, at least 2. Raises `UsageError` without a measured run.
    """
    groups: dict[str, dict[str | None, list[float]]] = {}
    turns: dict[str | None, list[tuple[float, ...]]] = {}
    for run in runs:
        if run.reward is not None:
            groups.setdefault(run.slug, {}).setdefault(run.group_id, []).append(run.reward)
            turns.setdefault(run.group_id, []).append(run.turn_rewards or ())
    by_turn = {group_id for group_id, rewards in turns.items() if turns_have_signal(rewards)}
    if not groups:
        raise UsageError("No run of this job was measured, so nothing is known of its tasks.")
    size = k or max(
        2,
        max(
            len(rewards_of_group)
            for of_task in groups.values()
            for rewards_of_group in of_task.values()
        ),
    )
    rewards = {
        slug: [reward for group in of.values() for reward in group] for slug, of in groups.items()
    }
    spread = {slug: variance(of) if len(of) > 1 else 0.0 for slug, of in rewards.items()}
    total = sum(spread.values()) or 1.0
    duplicates = near_duplicates({slug: tasks.get(slug, {}) for slug in rewards})
    signals = []
    for slug, earned in rewards.items():
        count, passed = len(earned), sum(reward >= pass_mark for reward in earned)
        recorded = {name: group for name, group in groups[slug].items() if len(group) > 1}
        without = [
            name
            for name, group in recorded.items()
            if not has_signal(group) and name not in by_turn
        ]
        empty = sum((times / count) ** size for times in Counter(earned).values())
        if by_turn.intersection(recorded):
            empty = min(empty, len(without) / len(recorded))
        signals.append(
            TaskSignal(
                slug=slug,
                runs=count,
                mean=fmean(earned),
                deviation=pstdev(earned),
                pass_at_1=passed / count,
                pass_at_k=pass_at_k(count, passed, size) if count >= size else None,
                groups=len(recorded),
                without_signal=len(without),
                empty=empty,
                weight=spread[slug] / total,
                duplicate_of=duplicates.get(slug),
                stage=_stage(slug in duplicates, empty, passed / count),
            )
        )
    signals.sort(key=lambda task: (-task.weight, task.slug))
    return JobSignal(size, tuple(signals))


def near_duplicates(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return near-duplicates, with the slug of the earlier task.

    Near-duplicates have the same template and equal arguments, except for prose (texts of `_PROSE` words or more), which
    is similar and contains equal numbers.
    """
    duplicates: dict[str, str] = {}
    originals: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for slug, row in tasks.items():
        if not row:
            continue
        # The form with all defaults.
        args = max((*reversed(equal_args_of(row)), row.get("args") or {}), key=len)
        prose = {name for name, argument in args.items() if len(str(argument).split()) >= _PROSE}
        text = " ".join(str(args[name]) for name in sorted(prose))
        exact = {name: None if name in prose else argument for name, argument in args.items()}
        place = [row.get("env"), row.get("id"), exact, re.findall(r"\d+", text)]
        key = json.dumps(plain_value(place), sort_keys=True, default=str)
        same = originals.setdefault(key, [])
        grams = _grams(text)
        first = next((other for other, theirs in same if _alike(grams, theirs)), None)
        if first is None:
            same.append((slug, grams))
        else:
            duplicates[slug] = first
    return duplicates


def _alike(first: frozenset[str], other: frozenset[str]) -> bool:
    smaller, larger = sorted((len(first), len(other)))
    if smaller < NEAR * larger:
        return False  # Too different in length: no need to compare.
    shared = len(first & other)
    return shared >= NEAR * (smaller + larger - shared)


def _grams(text: str) -> frozenset[str]:
    """Return the character n-grams of a text, in lower case and with single spaces."""
    plain = re.sub(r"\s+", " ", text.lower())
    return frozenset(plain[at : at + _GRAM] for at in range(max(1, len(plain) - _GRAM + 1)))


def _stage(duplicate: bool, empty: float, passed: float) -> Stage:
    if duplicate:
        return "duplicate"
    if empty <= MOST_EMPTY:
        return "now"
    return "done" if passed > 0.5 else "later"
