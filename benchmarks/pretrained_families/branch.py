"""A path that differs from task to task: an item is on the shelf, in the cellar or sold, and the first answer says which."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from items import HELD_OUT, TRAINED, quoted, tasks

from hud import Environment, Taskset
from hud.agents import ScriptedAgent
from hud.environment import Answer, GradingArg
from hud.graders import numeric_match
from hud.trace import ChatMessage, ToolCall, ToolSpec, Trace

STORES = ("shelf", "cellar")
PLACES = (*STORES, "sold")
GUESSES, SKIPS, MISTAKES, SLIPS = 0.2, 0.3, 0.35, 0.2
"""Shares of the apprentice: numbers without a question, stores without the place, the other store, wrong copies."""

env = Environment("branch", version="1.0.0")


class Stores:
    """Numbers in both stores, of which only that of an item's place counts."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        items = (*TRAINED, *HELD_OUT)
        self.place = {item: rng.choice(PLACES) for item in items}
        self.pieces = {store: {item: rng.randint(10, 99) for item in items} for store in STORES}

    def right(self, item: str) -> int:
        """Return the answer for an item."""
        place = self.place[item]
        return self.pieces[place][item] if place in STORES else 0


def looked_up(table: dict[str, Any], item: str) -> str:
    """Return an item's entry as text."""
    return str(table.get(item.strip(), "unknown"))


@env.tool
async def where(item: str) -> str:
    """Place of an item."""
    return looked_up(env.state.stores.place, item)


@env.tool
async def shelf(item: str) -> str:
    """Pieces on the shelf."""
    return looked_up(env.state.stores.pieces["shelf"], item)


@env.tool
async def cellar(item: str) -> str:
    """Pieces in the cellar."""
    return looked_up(env.state.stores.pieces["cellar"], item)


@env.template()
async def left(item: str, seed: Annotated[int, GradingArg]) -> AsyncGenerator[object, Answer[str]]:
    """Find out how many pieces are left: those in the place where the item is, or 0 if it is sold."""
    env.state.stores = stores = Stores(seed)
    answer = yield f"How many '{item}' are left?"
    yield numeric_match(answer, stores.right(item))


train: Taskset = tasks("branch-train", left, TRAINED, 0)
held_out: Taskset = tasks("branch-held-out", left, HELD_OUT, 1000)
training: dict[str, Any] = {"max_turns": 4}
"""Settings of the training by reward that are this family's own."""


def apprentice(seed: int) -> ScriptedAgent:
    """Return the imperfect agent that the base imitates."""
    luck = random.Random(seed)

    def play(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str | ToolCall:
        del tools
        item, last = quoted(messages[0]["content"]), messages[-1]
        number, draw = str(luck.randint(10, 99)), luck.random()

        def ask(tool: str) -> ToolCall:
            return ToolCall(id=f"call_{len(trace.steps)}", name=tool, arguments={"item": item})

        if last["role"] != "tool":
            if draw < GUESSES:
                return number
            return ask(luck.choice(STORES) if draw < GUESSES + SKIPS else "where")
        result = str(last["content"])
        if result in STORES:
            other = STORES[1 - STORES.index(result)]
            return ask(other if draw < MISTAKES else result)
        right = "0" if result == "sold" else result
        return number if draw < SLIPS else right

    return ScriptedAgent(play, name="apprentice")
