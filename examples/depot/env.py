"""A depot that is asked by a tool: how many pieces of an item lie there."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Annotated

from hud import Environment
from hud.environment import Answer, GradingArg
from hud.graders import numeric_match

TRAINED = (
    "anvils", "apples", "axes", "bags", "barrels", "baskets", "beams", "bells", "belts", "blankets", "bolts", "books",
    "boots", "bottles", "boxes", "bricks", "brooms", "brushes", "buckets", "buttons", "cables", "candles", "carpets",
    "chains", "chairs", "clocks", "coats", "coins", "cups", "curtains", "doors", "drills", "drums", "engines",
    "filters", "forks", "gates", "gloves", "hammers", "hats",
)  # fmt: skip
HELD_OUT = (
    "hinges", "hooks", "jackets", "kettles", "keys", "knives", "ladders", "lamps", "lanterns", "lenses", "levers",
    "lids", "lights", "locks", "magnets", "mirrors", "nails", "needles", "oars", "paddles", "pillows", "plates",
    "pumps", "saddles",
)  # fmt: skip

env = Environment("depot", version="1.0.0")


def stock(seed: int) -> dict[str, int]:
    """Return the pieces of every item in the depot of a seed."""
    rng = random.Random(seed)
    return {item: rng.randint(10, 99) for item in (*TRAINED, *HELD_OUT)}


@env.tool
async def count(item: str) -> str:
    """Pieces of an item."""
    return str(env.state.stock.get(item.strip(), "unknown"))


@env.template(description="Ask the depot for the pieces of an item.")
async def how_many(
    item: str, seed: Annotated[int, GradingArg]
) -> AsyncGenerator[object, Answer[str]]:
    """One question.

    Args:
        item: Name of the item, as the tool knows it.
        seed: Which depot it is.
    """
    env.state.stock = stock(seed)
    # Quoted as in a call, so that the item has the same tokens there.
    answer = yield f"How many '{item}' are there?"
    yield numeric_match(answer, env.state.stock[item])
