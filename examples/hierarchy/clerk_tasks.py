"""Questions for the clerk alone; `clerk_held_out.py` has those to be judged by.

hud eval examples/hierarchy/clerk_tasks.py AGENT --all
"""

import random

from env import ITEMS, check, clerk

from hud import Task, Taskset

__all__ = ["clerk", "train"]


def question(seed: int) -> Task:
    """Return the task of a question, named after its seed."""
    item = random.Random(f"item {seed}").choice(ITEMS)
    return check(item=item, seed=seed).model_copy(update={"slug": f"check-{seed:04d}"})


train = Taskset("clerk-train", map(question, range(600)))
