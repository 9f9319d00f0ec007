"""Subagents in training: their models and seeds, and the agent that combines them with the policy.

Works on configurations and environments' subagents; independent of rollouts and weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hud.agents import Agent
from hud.agents.types import OpenAIChatConfig
from hud.environment import AgentTool
from hud.errors import UsageError
from hud.inference.models import chat_model
from hud.trace import ChatModel, SamplingParams
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.rollouts.programs import program_agent
from hud.train.rollouts.seeds import SeededAgent

if TYPE_CHECKING:
    from hud.client import Client
    from hud.environment import Environment, Task


def subagents_of(
    config: TrainConfig,
    tasks: Iterable[Task],
    played_as: Mapping[str, SubagentConfig] | None = None,
) -> dict[str, SubagentConfig]:
    """Return the models of subagents, by a tool's name or its environment's model.

    Unconfigured ones play with the environment's model. `played_as` holds models' settings, by slug, for those configured
    by model only. Raises `UsageError` for an unknown subagent, and for a trained model that no subagent plays with.
    """
    settings = dict(config.subagents)
    seen: set[int] = set()
    bound = [task.environment for task in tasks if task.environment is not None]
    tools = [tool for environment in bound for tool in _tools(environment, seen)]
    for tool in tools:
        if tool.model is not None and not {tool.name, tool.model} & settings.keys():
            settings[tool.model] = SubagentConfig(model=tool.model)
    if tools:  # Otherwise the environments are remote, and their subagents unknown.
        names = {tool.name for tool in tools} | {tool.model for tool in tools if tool.model}
        if unknown := sorted(settings.keys() - names):
            raise UsageError(
                f"subagents names {unknown[0]!r}, but the environments of these tasks have no such subagent (there "
                f"are: {', '.join(sorted(names))})."
            )
    own = config.model in config.joined and any(tool.model is None for tool in tools)
    played = {subagent.model for subagent in settings.values()} | ({config.model} if own else set())
    for model in config.joined:
        if model not in played:
            raise UsageError(
                f"joined names {model!r}, with which no subagent plays (their models are: "
                f"{', '.join(sorted(played)) or 'none'})."
            )
    return {key: _as_played(subagent, played_as or {}) for key, subagent in settings.items()}


def _as_played(subagent: SubagentConfig, played_as: Mapping[str, SubagentConfig]) -> SubagentConfig:
    stage_settings = played_as.get(subagent.model)
    if stage_settings is None:
        return subagent
    unset = stage_settings.model_fields_set - subagent.model_fields_set
    return subagent.model_copy(update={name: getattr(stage_settings, name) for name in unset})


async def refuse_efforts(
    client: Client, config: TrainConfig, subagents: Mapping[str, SubagentConfig]
) -> None:
    """Raise `UsageError` for a model whose chat template has no reasoning effort, before any rollout.

    Only a model's server has its chat template, so one token is requested of each of these models.
    """
    players = [(subagent.model, subagent.reasoning_effort) for subagent in subagents.values()]
    efforts = {(config.model, config.reasoning_effort), *players}
    for model, effort in efforts:
        if effort is not None:
            chat = await chat_model(model, client=client)
            params = SamplingParams(max_tokens=1, reasoning_effort=effort)
            await chat.complete([{"role": "user", "content": "Hello."}], [], params)


def _tools(environment: Environment, seen: set[int]) -> Iterable[AgentTool]:
    """Yield the subagents of an environment, of all levels."""
    if id(environment) in seen:
        return
    seen.add(id(environment))
    for tool in environment.tools.values():
        if isinstance(tool, AgentTool):
            yield tool
            yield from _tools(tool.template.environment, seen)


def agent_of(
    models: Mapping[str, ChatModel],
    config: TrainConfig,
    subagents: dict[str, SubagentConfig],
    temperature: float,
    place: tuple[object, ...],
    progress: float | None = None,
) -> Agent:
    """Return the agent of a step: the policy, with its subagents; `models` are by slug."""

    def seeded(player: SubagentConfig) -> SeededAgent:
        model = models[player.model]
        played = OpenAIChatConfig(
            model=model.name,
            max_steps=player.max_turns or config.max_turns,
            system_prompt=player.system_prompt,
            context_policy=config.context_policy,
            compact_at=config.compact_at,
            compact_model=config.compact_model,
        )
        params = SamplingParams(
            max_tokens=player.max_tokens or config.max_tokens,
            temperature=temperature,
            reasoning_effort=player.reasoning_effort,
        )
        return SeededAgent(model, played, params, place)

    agent: Agent
    if config.agent is None:
        agent = seeded(config.player)
    else:
        pinned = getattr(models[config.model], "checkpoint", None)
        agent = program_agent(config, temperature, pinned, place)
    agent.training_progress = progress
    agent.subagents = {name: seeded(player) for name, player in subagents.items()}
    return agent
