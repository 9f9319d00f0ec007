"""Three calls in a row, each with the result of the one before: the shelf of an item, the box on it, the pieces in the box."""

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

GUESSES, MISTAKES, SLIPS = 0.1, 0.15, 0.15
"""Shares of the apprentice: at each turn an early number; in each later call another argument; wrong copies at the end."""

env = Environment("relay", version="1.0.0")


class Depot:
    """Shelves of items, boxes on shelves, and pieces in boxes."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        items = (*TRAINED, *HELD_OUT)
        shelves = [f"{letter}{digit}" for letter in "ABCDEFGH" for digit in range(1, 10)]
        boxes = rng.sample(
            [f"{letter}{digit}" for letter in "PQRSTUVW" for digit in range(1, 10)], 72
        )
        self.shelf_of = dict(zip(items, rng.sample(shelves, len(items)), strict=True))
        self.box_on = dict(zip(shelves, boxes, strict=True))
        self.pieces_in = {box: rng.randint(10, 99) for box in boxes}

    def right(self, item: str) -> int:
        """Return the answer for an item."""
        return self.pieces_in[self.box_on[self.shelf_of[item]]]


@env.tool
async def shelf(item: str) -> str:
    """Shelf of an item."""
    return env.state.depot.shelf_of.get(item.strip(), "unknown")


@env.tool
async def box(shelf: str) -> str:
    """Box on a shelf."""
    return env.state.depot.box_on.get(shelf.strip(), "unknown")


@env.tool
async def count(box: str) -> str:
    """Pieces in a box."""
    return str(env.state.depot.pieces_in.get(box.strip(), "unknown"))


@env.template()
async def pieces(
    item: str, seed: Annotated[int, GradingArg]
) -> AsyncGenerator[object, Answer[str]]:
    """Find out how many pieces of an item there are."""
    env.state.depot = depot = Depot(seed)
    answer = yield f"How many '{item}' are there?"
    yield numeric_match(answer, depot.right(item))


train: Taskset = tasks("relay-train", pieces, TRAINED, 0)
held_out: Taskset = tasks("relay-held-out", pieces, HELD_OUT, 1000)
training: dict[str, Any] = {"max_turns": 5}
"""Settings of the training by reward that are this family's own."""


def apprentice(seed: int) -> ScriptedAgent:
    """Return the imperfect agent that the base imitates."""
    luck = random.Random(seed)
    chain = (("shelf", "item"), ("box", "shelf"), ("count", "box"))

    def play(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str | ToolCall:
        del tools, trace
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        number, draw = str(luck.randint(10, 99)), luck.random()
        if len(results) == len(chain):
            return number if draw < SLIPS else results[-1]
        if draw < GUESSES:
            return number
        tool, argument = chain[len(results)]
        value = results[-1] if results else quoted(messages[0]["content"])
        if results and draw < GUESSES + MISTAKES:
            value = f"{luck.choice('ABCPQR')}{luck.randint(1, 9)}"
        return ToolCall(id=f"call_{len(results)}", name=tool, arguments={argument: value})

    return ScriptedAgent(play, name="apprentice")
