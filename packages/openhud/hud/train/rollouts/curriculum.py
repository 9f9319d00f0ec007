"""The tasks of a step, in the order of play: the step's groups, then replacements of groups without signal.

`uniform` visits every task before any twice. `signal` samples tasks by their expected gradient weight, estimated from the
groups that the run has played. Works on tasks and reward variances; independent of weights and runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hud.train.config import TrainConfig
from hud.train.rollouts.seeds import draw_tasks, seed_of

if TYPE_CHECKING:
    from hud.environment import Task

FLOOR = 0.2
"""Uniform share of the sampling, so that no task is excluded."""
HALF_LIFE = 8
"""Half-life of a group's weight, in steps: the policy changes."""
MEMORY = 5 * HALF_LIFE
"""Steps after which a group is dropped; its weight would be 3%."""
PRIOR = 1.0
"""Weight of the prior, in groups: the mean over tasks of the same kind."""
PRIOR_BELOW = 4.0
"""Weight of a prior that lies below a task's own groups: the task with most signal was lucky, and was learned from since."""


class PlayedGroup(NamedTuple):
    """Signal of one group."""

    step: int
    slug: str
    weight: float
    """Mean squared advantage of its runs; 0: no signal."""


def played_groups(rows: Any) -> list[PlayedGroup]:
    """Return groups from a training run's state: rows of `[step, slug, weight]`."""
    return [PlayedGroup(int(step), str(slug), float(weight)) for step, slug, weight in rows or ()]


class Curriculum:
    """Sampler of a training run's tasks, deterministic by seed, step and earlier groups."""

    def __init__(
        self, config: TrainConfig, tasks: Sequence[Task], played: Sequence[PlayedGroup] = ()
    ) -> None:
        """`played` are the groups of earlier steps of a resumed run."""
        self.config, self.tasks = config, tasks
        self.played = list(played)
        self._kinds = {task.slug: _kind(task) for task in tasks}

    def draw(self, step: int) -> Iterator[Task]:
        """Yield every task once, in the order in which a step plays them."""
        config = self.config
        if config.curriculum == "uniform":
            return draw_tasks(self.tasks, config.seed, step, config.tasks_per_step)
        return self._by_signal(step)

    def record(self, step: int, weights: Mapping[str, float]) -> None:
        """Add the groups of a step, by slug; groups older than `MEMORY` steps are dropped."""
        recent = (group for group in self.played if step - group.step < MEMORY)
        self.played = [*recent, *(PlayedGroup(step, *group) for group in weights.items())]

    def estimates(self, step: int) -> list[float]:
        """Return the expected gradient weight of each task at a step; 1.0 for all before any group was played.

        The decayed mean of its own groups and of `PRIOR` groups with the mean of its kind (tasks with equal columns), or
        `PRIOR_BELOW` where that is lower. The mean of the kind is shrunk towards the mean of all tasks likewise.
        """
        if not self.played:
            return [1.0] * len(self.tasks)
        overall, kinds, own = _Mean(), dict[str, _Mean](), dict[str, _Mean]()
        for group in self.played:
            share = 0.5 ** ((step - group.step) / HALF_LIFE)
            kind = self._kinds.get(group.slug)
            if kind is None:
                continue  # A resumed run may have other tasks.
            for mean in (
                overall,
                kinds.setdefault(kind, _Mean()),
                own.setdefault(group.slug, _Mean()),
            ):
                mean.add(group.weight, share)
        expected = []
        for task in self.tasks:
            kind_mean = kinds.get(self._kinds[task.slug], _Mean()).toward(overall.toward(0.0))
            mean = own.get(task.slug, _Mean())
            expected.append(min(mean.toward(kind_mean), mean.toward(kind_mean, PRIOR_BELOW)))
        return expected

    def _by_signal(self, step: int) -> Iterator[Task]:
        """Yield tasks without replacement, each time by probability (Efraimidis and Spirakis, 2006)."""
        estimates, count = self.estimates(step), len(self.tasks)
        total = sum(estimates)
        rng = random.Random(seed_of("signal", self.config.seed, step))
        ranked = []
        for place, estimate in enumerate(estimates):
            chance = FLOOR / count + (1 - FLOOR) * estimate / total if total > 0 else 1 / count
            ranked.append((-math.log(1.0 - rng.random()) / chance, place))
        for _, place in sorted(ranked):
            yield self.tasks[place]


class _Mean:
    """A weighted mean."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def add(self, value: float, weight: float) -> None:
        self.total += weight * value
        self.weight += weight

    def toward(self, prior: float, weight: float = PRIOR) -> float:
        """Return the mean with `weight` observations of a prior value."""
        return (self.total + weight * prior) / (self.weight + weight)


def _kind(task: Task) -> str:
    """Return the key of a task's kind: environment, template and columns."""
    columns = sorted((task.columns or {}).items())
    return repr((task.env, task.id, columns))
