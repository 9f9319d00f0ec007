"""Pages to train on; `held_out.py` has those to be judged by.

hud eval examples/pixels/tasks.py AGENT --all
"""

from env import click, env

from hud import Task, Taskset

__all__ = ["env", "train"]

PAGES = 360


def page(seed: int) -> Task:
    """Return the task of a page, named after its seed."""
    return click(seed=seed).model_copy(update={"slug": f"page-{seed:03d}"})


train = Taskset("pixels-train", map(page, range(PAGES)))
