"""Items of the families: those that training names, and those of the held-out tasks."""

from __future__ import annotations

import re
from typing import Any

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
