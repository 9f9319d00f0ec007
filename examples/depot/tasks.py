"""Questions to train on; `held_out.py` has those to be judged by.

hud eval examples/depot/tasks.py AGENT --all
"""

from env import TRAINED, env, how_many

from hud import Task, Taskset

__all__ = ["env", "train"]


def question(item: str, seed: int) -> Task:
    """Return the task of an item, named after it."""
    return how_many(item=item, seed=seed).model_copy(update={"slug": item})


train = Taskset("depot-train", [question(item, seed) for seed, item in enumerate(TRAINED)])
