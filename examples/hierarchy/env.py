"""A shop with two desks: a manager who answers orders, and a clerk who looks into the bins.

The clerk is an environment of its own, with tools and a reward; to the manager it is one tool. The manager never
sees the bins, and neither sees which stock it is: that is the grader's.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Annotated

from hud import Environment
from hud.environment import AgentTool, Answer, GradingArg

ITEMS = ("bolt", "nut", "screw", "nail", "hinge", "hook", "spring", "washer")
BINS = "ABCDEFGH"
IN_STOCK = 0.7
"""How many of the items are there."""
WASTE = 3
"""Calls beyond what the answer took at which the bonus for few calls is gone."""

clerk = Environment("clerk", version="1.0.0")
manager = Environment("manager", version="1.0.0")


class Stock:
    """What lies where: the ledger names two bins for every item, and at most one of them holds it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.ledger = {item: rng.sample(BINS, 2) for item in ITEMS}
        self.place = {
            item: rng.choice(self.ledger[item]) if rng.random() < IN_STOCK else None
            for item in ITEMS
        }

    def has(self, item: str) -> bool:
        """Return whether there is any."""
        return self.place.get(item) is not None


def thrift(calls: int, needed: int) -> float:
    """Return the share of the reward that is left after calls that were not needed."""
    return 0.7 + 0.3 * max(0.0, 1.0 - max(0, calls - needed) / WASTE)


@clerk.tool
async def ledger(item: str) -> str:
    """Bins of an item."""
    return " ".join(clerk.state.stock.ledger.get(item, ["unknown"]))


@clerk.tool
async def look(bin: str, item: str) -> str:
    """Look into a bin."""
    clerk.state.looks += 1
    return f"{item}: {'yes' if clerk.state.stock.place.get(item) == bin else 'no'}"


@clerk.template(description="Ask the clerk whether an item is in stock.")
async def check(
    item: str, seed: Annotated[int, GradingArg] = 0
) -> AsyncGenerator[object, Answer[str]]:
    """Find out whether an item is in stock.

    Args:
        item: Name of the item.
        seed: Which stock it is.
    """
    clerk.state.stock = stock = Stock(seed)
    clerk.state.looks = 0
    answer = yield f"Is {item} in stock? Answer: in stock, or sold out."
    bins = stock.ledger.get(item, [])
    found = stock.place.get(item)
    needed = bins.index(found) + 1 if found in bins else len(bins)
    right = str(answer).strip() == ("in stock" if stock.has(item) else "sold out")
    # An answer without a look is luck, whatever it says.
    yield thrift(clerk.state.looks, needed) if right and clerk.state.looks else 0.0


manager.add_tool(AgentTool(check, model="clerk", name="ask_clerk", max_steps=6))


@manager.template(description="Decide whether an order is shipped.")
async def decide(first: str, second: str, seed: int) -> AsyncGenerator[object, Answer[str]]:
    """Ship an order of two items if both are in stock, else let it wait."""
    answer = yield f"Order: {first}, {second}. Answer: ship, or wait."
    stock = Stock(seed)
    asked = [
        step.call.arguments.get("item")
        for step in answer.trace.steps
        if step.source == "tool" and isinstance(step.call.arguments, dict)
    ]
    right = str(answer).strip() == ("ship" if stock.has(first) and stock.has(second) else "wait")
    needed = 2 if stock.has(first) else 1
    # To ship is to have asked for both, to let wait is to have found one that is not there.
    proven = {first, second} <= set(asked) or any(not stock.has(str(item)) for item in asked)
    yield thrift(len(asked), needed) if right and proven else 0.0
