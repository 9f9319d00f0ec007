"""Hand-written players: those who do it right, and the apprentices that the demo's policies first imitate.

    hud eval examples/hierarchy/tasks.py examples/hierarchy/scripted.py --all

Each is a generator: it yields calls, is sent what the tools say, and returns the answer.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Generator

from hud.agents import ScriptedAgent
from hud.trace import ChatMessage, Completion, ToolCall, ToolSpec, Trace

Call = tuple[str, dict[str, str]]
Doing = Generator[Call, str, str]


def find(prompt: str) -> Doing:
    """The clerk: looks into one bin after the other, until it is there."""
    item = re.findall(r"Is (\w+)", prompt)[0]
    for place in (yield "ledger", {"item": item}).split():
        if "yes" in (yield "look", {"bin": place, "item": item}):
            return "in stock"
    return "sold out"


def find_badly(prompt: str, rng: random.Random) -> Doing:
    """The clerk's apprentice: looks into one bin only, or into one too many, or guesses."""
    item = re.findall(r"Is (\w+)", prompt)[0]
    bins = (yield "ledger", {"item": item}).split()
    habit = rng.choices(["hasty", "thorough", "sound", "guess"], [0.45, 0.2, 0.2, 0.15])[0]
    if habit == "guess":
        return rng.choice(["in stock", "sold out"])
    found = False
    for place in bins[: 1 if habit == "hasty" else 2]:
        found = "yes" in (yield "look", {"bin": place, "item": item}) or found
        if found and habit == "sound":
            break
    return "in stock" if found else "sold out"


def settle(prompt: str) -> Doing:
    """The manager: asks for one item after the other, until one is not there."""
    for item in re.findall(r"Order: (\w+), (\w+)", prompt)[0]:
        if "sold out" in (yield "ask_clerk", {"item": item}):
            return "wait"
    return "ship"


def settle_badly(prompt: str, rng: random.Random) -> Doing:
    """The manager's apprentice: asks for one item only, or for both come what may, or guesses."""
    items = re.findall(r"Order: (\w+), (\w+)", prompt)[0]
    habit = rng.choices(["hasty", "thorough", "sound", "guess"], [0.4, 0.25, 0.15, 0.2])[0]
    if habit == "guess":
        return rng.choice(["ship", "wait"])
    missing = False
    for item in items[: 1 if habit == "hasty" else 2]:
        missing = "sold out" in (yield "ask_clerk", {"item": item}) or missing
        if missing and habit == "sound":
            break
    return "wait" if missing else "ship"


class Script:
    """Plays turn by turn, in the shape that `ScriptedAgent` wants."""

    def __init__(self, begin: Callable[[str], Doing]) -> None:
        self.begin = begin
        self.running: dict[int, Doing] = {}
        self.calls = itertools.count(1)

    def __call__(
        self, messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace
    ) -> Completion:
        del tools
        last = messages[-1]
        try:
            if last["role"] == "tool":
                name, arguments = self.running[id(trace)].send(last["content"])
            else:
                self.running[id(trace)] = self.begin(last["content"])
                name, arguments = next(self.running[id(trace)])
        except StopIteration as end:
            self.running.pop(id(trace))
            return Completion(content=end.value)
        call = ToolCall(id=f"call_{next(self.calls)}", name=name, arguments=arguments)
        return Completion(tool_calls=[call], finish_reason="tool_calls")


def player(begin: Callable[[str], Doing], name: str) -> ScriptedAgent:
    """Return an agent that does as `begin` says, and whose clerk does it right."""
    agent = ScriptedAgent(Script(begin), name=name)
    agent.subagents = {"ask_clerk": expert_clerk}
    return agent


expert_clerk = ScriptedAgent(Script(find), name="expert-clerk")
agent = player(settle, "expert-manager")
"""Settles every order."""


def apprentices(seed: int = 0) -> tuple[ScriptedAgent, ScriptedAgent]:
    """Return the imperfect clerk and manager; each of their runs has its own luck."""
    luck = random.Random(seed)
    return (
        player(lambda prompt: find_badly(prompt, random.Random(luck.random())), "apprentice-clerk"),
        player(lambda prompt: settle_badly(prompt, random.Random(luck.random())), "apprentice"),
    )
