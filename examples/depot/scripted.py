"""Hand-written agents for the depot: the oracle, and the apprentice that the demo's policy first imitates."""

from __future__ import annotations

import random
import re

from env import TRAINED

from hud.agents import ScriptedAgent
from hud.trace import ChatMessage, ToolCall, ToolSpec, Trace

GUESSES, MISTAKES, SLIPS = 0.25, 0.3, 0.3
"""Shares of the apprentice: answers without a question, questions about another item, wrong copies of a right number."""


def item_of(question: str) -> str:
    """Return the item that a question is about."""
    named = re.search(r"How many '(\w+)'", question)
    assert named is not None
    return named[1]


def solve(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str | ToolCall:
    """Ask for the item, and answer with its number."""
    del tools
    last = messages[-1]
    if last["role"] == "tool":
        return str(last["content"])
    return ask(item_of(last["content"]), trace)


def ask(item: str, trace: Trace) -> ToolCall:
    """Return a call of the tool."""
    return ToolCall(id=f"call_{len(trace.steps)}", name="count", arguments={"item": item})


agent = ScriptedAgent(solve, name="oracle")
"""Solves every task: `hud eval examples/depot/tasks.py examples/depot/scripted.py --all`."""


def apprentice(seed: int = 0) -> ScriptedAgent:
    """Return the imperfect agent whose runs the demo's policy first learns from."""
    luck = random.Random(seed)

    def muddle(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str | ToolCall:
        guess = str(luck.randint(10, 99))
        if messages[-1]["role"] == "tool":
            return guess if luck.random() < SLIPS else solve(messages, tools, trace)
        draw = luck.random()
        if draw < GUESSES:
            return guess
        item = item_of(messages[-1]["content"])
        return ask(luck.choice(TRAINED) if draw < GUESSES + MISTAKES else item, trace)

    return ScriptedAgent(muddle, name="apprentice")
