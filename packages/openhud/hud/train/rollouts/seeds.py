"""Reproducible randomness: every random choice of a training run is a function of the seed and its position.

A step's tasks depend on seed and step only, a turn's tokens on seed, step, task, attempt and turn. A resumed run therefore
samples the same tokens.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from hud.agents import Agent
from hud.agents.tool_loop import play
from hud.agents.types import OpenAIChatConfig
from hud.errors import UsageError
from hud.trace import (
    ChatMessage,
    ChatModel,
    Completion,
    SamplingParams,
    ToolSpec,
)

Item = TypeVar("Item")


def seed_of(*place: object) -> int:
    """Return the seed of a position, practically independent of other positions' seeds."""
    text = "\x1f".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def draw_tasks(tasks: Sequence[Item], seed: int, step: int, count: int) -> Iterator[Item]:
    """Yield a step's tasks: its share of a shuffled pass over all of them, then others in random order.

    The first `count` of all steps together visit every task before any twice. The rest are replacements of groups without
    signal. No task is repeated within a step.
    """
    size = len(tasks)
    places = range(step * count, step * count + min(count, size))
    # A step may cross the end of a pass over all tasks.
    passes = {
        number: _shuffled(size, seed, number) for number in {place // size for place in places}
    }
    chosen = dict.fromkeys(passes[place // size][place % size] for place in places)
    yield from (tasks[number] for number in chosen)
    for number in _shuffled(size, seed, f"more {step}"):
        if number not in chosen:
            yield tasks[number]


def _shuffled(size: int, seed: int, pass_: object) -> list[int]:
    order = list(range(size))
    random.Random(seed_of("tasks", seed, pass_)).shuffle(order)
    return order


class SeededAgent(Agent):
    """The tool loop, with each turn's seed by position."""

    def __init__(
        self,
        model: ChatModel,
        config: OpenAIChatConfig,
        params: SamplingParams,
        place: tuple[object, ...],
    ) -> None:
        self.model = model
        self.config = config
        self.params = params
        self.place = place

    @property
    def model_name(self) -> str | None:
        return self.model.name

    @property
    def hosted_config(self) -> OpenAIChatConfig:
        return self.config

    @property
    def hosted_sampling(self) -> dict[str, Any]:
        """Plain data of which a worker of the fleet makes the same agent: see `seeded_agent`."""
        params = {
            name: value for name, value in asdict(self.params).items() if value not in (None, ())
        }
        pinned = getattr(self.model, "checkpoint", None)
        return {
            "place": [str(part) for part in self.place],
            "params": params,
            "checkpoint": pinned,
        }

    async def __call__(self, run: Any) -> None:
        place = (*self.place, *place_of(run))
        await play(run, _SeededModel(self.model, place), self.config, self.params)


def seeded_agent(
    model: ChatModel, config: OpenAIChatConfig, sampling: dict[str, Any]
) -> SeededAgent:
    """Return the agent whose `sampling` is given: it draws, turn by turn, with the same seeds.

    Raises `UsageError` for what no `SeededAgent` said.
    """
    try:
        params = SamplingParams(**sampling["params"])
        place = tuple(str(part) for part in sampling["place"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"The agent's sampling is not right: {error}.") from error
    return SeededAgent(model, config, params, place)


def place_of(run: Any) -> tuple[object, ...]:
    """Return a run's unique position in its step: for a subagent's run, including the call of its caller."""
    caller = getattr(run, "caller", None)
    return (run.slug, run.attempt) if caller is None else (*place_of(caller), *run.called_as)


class _SeededModel(ChatModel):
    """A `ChatModel` for a run that counts turns."""

    def __init__(self, model: ChatModel, place: tuple[object, ...]) -> None:
        self.name = model.name
        self.model = model
        self.place = place
        self.turn = 0

    async def complete(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        params: SamplingParams,
        **further: Any,
    ) -> Completion:
        self.turn += 1
        seeded = replace(params, seed=seed_of(*self.place, self.turn))
        return await self.model.complete(messages, tools, seeded, **further)
