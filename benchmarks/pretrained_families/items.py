"""Items of the families: those that training names, and those of the held-out tasks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hud import Task, Taskset

TRAINED = (
    "anvils", "apples", "bags", "barrels", "baskets", "bells", "belts", "blankets", "bolts", "books", "boots", "bottles",
    "boxes", "bricks", "brooms", "brushes", "buckets", "buttons", "cables", "candles", "carpets", "chains", "chairs",
    "clocks", "coats", "coins", "cups", "curtains", "doors", "drills", "drums", "engines", "filters", "forks", "gates",
    "gloves",
)  # fmt: skip
HELD_OUT = (
    "hinges", "hooks", "jackets", "kettles", "keys", "knives", "ladders", "lamps", "lanterns", "lenses", "levers",
    "lids", "lights", "locks", "magnets", "mirrors", "nails", "needles", "oars", "paddles", "pillows", "plates",
    "pumps", "saddles",
)  # fmt: skip


def quoted(text: Any) -> str:
    """Return the item that a question names in quotes."""
    named = re.search(r"'(\w+)'", str(text))
    assert named is not None
    return named[1]


def tasks(name: str, template: Callable[..., Task], items: tuple[str, ...], first: int) -> Taskset:
    """Return a task of each item, named after it, in a world of its own: seeds count from `first`."""
    made = [template(item=item, seed=seed) for seed, item in enumerate(items, first)]
    return Taskset(
        name, [task.model_copy(update={"slug": str(task.args["item"])}) for task in made]
    )
