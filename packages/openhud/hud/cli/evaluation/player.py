"""The AGENT argument: an agent's form (`hud.agents.agent_forms`), with the command's options."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hud import settings
from hud.agents import Agent
from hud.agents.agent_forms import HUMAN, NOTHING, as_agent, is_address, is_file, is_program
from hud.agents.agent_kinds import SERVED, kind_of_model
from hud.agents.providers.agent_kind import agent_kinds
from hud.cli.command_line import pairs
from hud.errors import UsageError
from hud.inference.model_listing import only_model

ORACLE = "oracle"


def parse_settings(texts: tuple[str, ...], option: str = "config") -> dict[str, Any]:
    """Return `k=v` pairs as settings: values are JSON if they parse, else text; dots nest."""
    settings: dict[str, Any] = {}
    for key, text in pairs(option, "KEY=VALUE", texts, empty=True):
        value: Any = text
        with suppress(ValueError):
            value = json.loads(text)
        *outer, last = key.split(".")
        place = settings
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UsageError(f"--{option} {key}: {part!r} has a value already.")
        place[last] = value
    return settings


def player(
    agent: str | None,
    model: str | None,
    config: dict[str, Any],
    *,
    oracle: Callable[[], Agent] | None = None,
) -> Agent:
    """Return the agent of the arguments; `oracle` creates that of the tasks, if they have one."""
    if agent is None and model is None:
        raise UsageError(
            f"Which agent? Give a model's slug (hud models list), one of {', '.join(agent_kinds())} and {HUMAN}, "
            "or path.py:agent for a script."
        )
    if model is not None and is_address(model) and agent in (None, SERVED):
        return _at_address(model, config)
    if agent == ORACLE and oracle is not None and model is None:
        return as_agent(oracle(), config)
    if agent is None or model is None:
        return as_agent(agent or model or "", config)
    if agent not in agent_kinds() and not is_file(agent) and not is_address(agent):
        raise UsageError(
            f"Two models are named, {agent!r} and {model!r}; --model goes with {', '.join(agent_kinds())} or a path.py:agent."
        )
    return as_agent(agent, {**config, "model": model})


def is_paid(agent: str | None, model: str | None) -> bool:
    """Return True if a provider's model is probably used, which costs money."""
    if agent is not None and is_program(agent):
        return kind_of_model(model or "") is not None
    return agent in agent_kinds() or kind_of_model(agent or model or "") is not None


def is_scripted(agent: str | None) -> bool:
    """Return True for an agent that has no steps or answers of a model: a script, an agent from a file, a person."""
    return agent is not None and (agent in (HUMAN, NOTHING, ORACLE) or is_file(agent))


def _at_address(url: str, config: dict[str, Any]) -> Agent:
    """Return an agent with a model of the server at `url`."""
    if config.get("base_url"):
        raise UsageError(f"--model {url} is the server's address; leave base_url out of --config.")
    name = config.get("model") or only_model(url, config.get("api_key") or settings.load().api_key)
    return as_agent(SERVED, {**config, "model": name, "base_url": url})
