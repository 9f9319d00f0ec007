"""Who plays in training: the policy, and for every subagent a model with seeds of its own.

Knows configurations and the subagents that environments name; knows neither rollouts nor weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hud.agents import Agent
from hud.agents.types import OpenAIChatConfig
from hud.environment import AgentTool
from hud.errors import UsageError
from hud.trace import ChatModel, SamplingParams
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.seeds import SeededAgent

if TYPE_CHECKING:
    from hud.client import Client
    from hud.environment import Environment, Task


@dataclass(frozen=True)
class Cast:
    """The models of a step."""

    policy: ChatModel
    subagents: dict[str, ChatModel] = field(default_factory=dict)
    """By slug."""


def subagents_of(config: TrainConfig, tasks: Iterable[Task]) -> dict[str, SubagentConfig]:
    """Return who plays subagents, by a tool's name or a model that an environment gives it.

    Those that the configuration does not name play with the environment's model. Raises `UsageError` for a
    model that is to learn and that nobody plays with.
    """
    found: dict[str, SubagentConfig] = {}
    seen: set[int] = set()
    for task in tasks:
        if task.environment is not None:
            for tool in _tools(task.environment, seen):
                if tool.model is not None and not {tool.name, tool.model} & config.subagents.keys():
                    found[tool.model] = SubagentConfig(model=tool.model)
    found |= config.subagents
    played = {one.model for one in found.values()} | {config.model}
    for model in config.joined:
        if model not in played:
            known = ", ".join(sorted(played - {config.model})) or "none"
            raise UsageError(
                f"joined names {model!r}, with which no subagent plays (their models are: {known})."
            )
    return found


async def cast_of(
    client: Client, policy: ChatModel, config: TrainConfig, subagents: dict[str, SubagentConfig]
) -> Cast:
    """Return a policy with its subagents' models, these at their heads."""
    others = {one.model for one in subagents.values()} - {config.model}
    heads = {model: await client.chat_model(model) for model in others}
    return Cast(policy, {config.model: policy, **heads})


def _tools(environment: Environment, seen: set[int]) -> Iterable[AgentTool]:
    """Yield the subagents of an environment, and those that they may call."""
    if id(environment) in seen:
        return
    seen.add(id(environment))
    for tool in environment.tools.values():
        if isinstance(tool, AgentTool):
            yield tool
            yield from _tools(tool.template.environment, seen)


def cast_agent(
    cast: Cast,
    config: TrainConfig,
    subagents: dict[str, SubagentConfig],
    temperature: float,
    place: tuple[object, ...],
) -> Agent:
    """Return the agent that plays a step: the policy, with its subagents."""
    own = SubagentConfig(
        model=config.model,
        max_turns=config.max_turns,
        max_tokens=config.max_tokens,
        system_prompt=config.system_prompt,
    )
    agent = _seeded(cast.policy, own, config, temperature, place)
    agent.subagents = {
        name: _seeded(cast.subagents[one.model], one, config, temperature, place)
        for name, one in subagents.items()
    }
    return agent


def _seeded(
    model: ChatModel,
    settings: SubagentConfig,
    config: TrainConfig,
    temperature: float,
    place: tuple[object, ...],
) -> SeededAgent:
    played = OpenAIChatConfig(
        model=model.name,
        max_steps=settings.max_turns or config.max_turns,
        system_prompt=settings.system_prompt,
    )
    params = SamplingParams(
        max_tokens=settings.max_tokens or config.max_tokens, temperature=temperature
    )
    return SeededAgent(model, played, params, place)
