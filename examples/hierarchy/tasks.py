"""Orders for the manager; `held_out.py` has those to be judged by.

hud eval examples/hierarchy/tasks.py AGENT --all
"""

import random

from env import ITEMS, decide, manager

from hud import Task, Taskset

__all__ = ["manager", "train"]


def order(seed: int) -> Task:
    """Return the task of an order, named after its seed."""
    first, second = random.Random(f"order {seed}").sample(ITEMS, 2)
    made = decide(first=first, second=second, seed=seed)
    return made.model_copy(update={"slug": f"order-{seed:04d}"})


train = Taskset("manager-train", map(order, range(10_000, 10_600)))
