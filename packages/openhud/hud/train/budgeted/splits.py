"""Training tasks and held-out ones of a command that may be given tasks alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.train.rollouts.held_out import HeldOut, held_out_sets
from hud.train.rollouts.sampling import load_tasks
from hud.train.rollouts.seeds import seed_of

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.tasksets.taskset import Taskset
    from hud.train.budgeted.settings import BudgetedSettings


@dataclass(frozen=True)
class Splits:
    """Training tasks, and held-out ones."""

    tasks: list[Task]
    held_out: list[Task]

    @property
    def every(self) -> list[Task]:
        """All tasks."""
        return [*self.tasks, *self.held_out]

    @property
    def data(self) -> list[str]:
        """Identities of the tasks, for a fingerprint."""
        return [repr(task.identity) for task in self.every]


def splits_of(
    config: BudgetedSettings,
    tasks: Taskset | None = None,
    held_out: Taskset | Sequence[Taskset] | None = None,
) -> Splits:
    """Return the tasks of a configuration, or those given; without held-out ones, a share of the tasks, chosen by the seed.

    Raises `UsageError` for too few tasks, and for tasks that are in both.
    """
    every = list(load_tasks(tasks, config.tasks, "tasks"))
    sets = HeldOut(held_out_sets(held_out, config.held_out))
    if sets:
        if overlap := sets.trained_on(task.identity for task in every):
            raise UsageError(
                f"{overlap} of {len(sets.tasks)} held-out tasks are training tasks, too: they are no evidence. Take them out of "
                "one of the two."
            )
        return Splits(every, sets.tasks)
    Random(seed_of("split", config.seed)).shuffle(every)
    count = max(1, round(config.held_out_share * len(every)))
    if len(every) - count < 2:
        raise UsageError(
            f"{len(every)} tasks are too few to hold some out; give held-out tasks of their own (--held-out)."
        )
    return Splits(every[count:], every[:count])
