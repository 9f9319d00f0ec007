"""Randomness that can be repeated: every draw of a training run is a function of its seed and its place.

A step's tasks depend on the seed and the step alone, a turn's tokens on seed, step, task, attempt and turn. So
a run that was killed draws again exactly what it would have drawn.
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
    """Return a seed for a place, as good as independent of every other place's."""
    text = "\x1f".join(map(str, place))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def draw_tasks(tasks: Sequence[Item], seed: int, step: int, count: int) -> Iterator[Item]:
    """Yield a step's tasks: its share of a shuffled pass over all of them, then others in random order.

    The first `count` of all steps together visit every task before any twice. What follows is for groups that
    came out without spread. No task comes twice in a step.
    """
    size = len(tasks)
    places = range(step * count, step * count + min(count, size))
    # They may end one pass over all tasks and begin the next.
    passes = {one: _shuffled(size, seed, one) for one in {place // size for place in places}}
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
    """The tool loop, each turn sampled with a seed of its place."""

    training_progress: float | None = None
    """Comes to the runs that it plays; None: they are not trained on."""

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
    def sampling(self) -> dict[str, Any]:
        """Plain data of which a worker of the fleet makes the same agent: see `seeded_agent`."""
        given = {
            name: value for name, value in asdict(self.params).items() if value not in (None, ())
        }
        pinned = getattr(self.model, "checkpoint", None)
        return {
            "place": [str(part) for part in self.place],
            "params": given,
            "checkpoint": pinned,
        }

    async def __call__(self, run: Any) -> None:
        place = (*self.place, *_place_of(run))
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


def _place_of(run: Any) -> tuple[object, ...]:
    """Return what tells a run from all others of its step: a subagent's by which call of its caller it is."""
    caller = getattr(run, "caller", None)
    return (run.slug, run.attempt) if caller is None else (*_place_of(caller), *run.called_as)


class _SeededModel:
    """A `ChatModel` for one run, which counts its turns."""

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
