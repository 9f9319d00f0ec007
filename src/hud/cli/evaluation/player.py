"""The AGENT argument: conversion to an agent.

SLUG                   a model of this machine, of the platform that HUD_API_URL names, or of a provider
claude, openai, operator, gemini, gemini_cua
                       a provider's agent, with its own model or the one that --model names
openai_compatible      any server of chat completions; --model names the model there
--model http://host/v1 the same without AGENT: the server's one model, or that of -c model=NAME
human                  a person, at this terminal
nothing                an agent that does nothing
oracle                 with --benchmark: the benchmark's own solutions
path.py:agent          an Agent, a subclass of it, or a script (`def agent(run)`), from a file
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hud import settings
from hud.agents import Agent, HumanAgent, ScriptedAgent, create_agent
from hud.agents.agent_kinds import KINDS, SERVED, agent_of, kind_of_model, settings_of
from hud.agents.scripted import NOTHING
from hud.cli.command_line import pairs
from hud.environment.sources.loader import load_file
from hud.errors import UsageError
from hud.inference.model_listing import only_model

HUMAN = "human"
ORACLE = "oracle"


def parse_settings(given: tuple[str, ...]) -> dict[str, Any]:
    """Return `k=v` pairs as settings: values are JSON if they parse, else text; dots nest."""
    found: dict[str, Any] = {}
    for key, text in pairs("config", "KEY=VALUE", given, empty=True):
        value: Any = text
        with suppress(ValueError):
            value = json.loads(text)
        *outer, last = key.split(".")
        place = found
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UsageError(f"--config {key}: {part!r} has a value already.")
        place[last] = value
    return found


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
            f"Which agent? Give a model's slug (hud models list), one of {', '.join(KINDS)} and {HUMAN}, "
            "or path.py:agent for a script."
        )
    if agent is not None and _is_file(agent):
        if model is not None:
            config = {**config, "model": model}
        return _from_file(agent, config)
    if model is not None and _is_address(model) and agent in (None, SERVED):
        return _at_address(model, config)
    if agent in KINDS:
        return _of_kind(agent, model, config)
    if agent is not None and model is not None:
        raise UsageError(
            f"Two models are named, {agent!r} and {model!r}; --model goes with {', '.join(KINDS)} or a path.py:agent."
        )
    if agent == HUMAN:
        return _human(config)
    if agent == NOTHING.name:
        return _script(agent, NOTHING, config)
    if agent == ORACLE and oracle is not None:
        return _script(agent, oracle(), config)
    return create_agent(agent or model or "", **config)


def is_paid(agent: str | None, model: str | None) -> bool:
    """Return True if a provider's model is probably used, which costs money."""
    return agent in KINDS or kind_of_model(agent or model or "") is not None


def is_scripted(agent: str | None) -> bool:
    """Return True for an agent that has no steps or answers of a model: a script, an agent from a file, a person."""
    return agent is not None and (agent in (HUMAN, NOTHING.name, ORACLE) or _is_file(agent))


def _is_address(model: str) -> bool:
    return model.startswith(("http://", "https://"))


def _at_address(url: str, config: dict[str, Any]) -> Agent:
    """Return an agent with a model of the server at `url`."""
    if config.get("base_url"):
        raise UsageError(f"--model {url} is the server's address; leave base_url out of --config.")
    name = config.get("model") or only_model(url, config.get("api_key") or settings.load().api_key)
    return _of_kind(SERVED, name, {**config, "base_url": url})


def _is_file(agent: str) -> bool:
    return agent.partition(":")[0].endswith(".py")


def _of_kind(kind: str, model: str | None, config: dict[str, Any]) -> Agent:
    if model is not None:
        config = {**config, "model": model}
    if kind == SERVED:
        if not config.get("model"):
            raise UsageError(f"{SERVED} needs --model, the name of the model on its server.")
        if not config.get("base_url") and settings.load().gateway_url is None:
            raise UsageError(
                f"{SERVED} needs the address of its server: --config base_url=http://host:port/v1, "
                "or HUD_API_URL (or HUD_GATEWAY_URL) of a platform."
            )
    return agent_of(kind, settings_of(kind, config, whose="--config"))


def _human(config: dict[str, Any]) -> HumanAgent:
    known = {"timeout_seconds", "tool_timeout_seconds", "name"}
    unknown = sorted(config.keys() - known - {"max_steps", "auto_respond"})
    if unknown:
        raise UsageError(
            f"{HUMAN} takes no {', '.join(unknown)}; it takes {', '.join(sorted(known))}."
        )
    return HumanAgent(**{name: value for name, value in config.items() if name in known})


def _from_file(target: str, config: dict[str, Any]) -> Agent:
    """Load an agent from `path.py:name`; default name: `agent`."""
    text, _, name = target.partition(":")
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    module = load_file(path)
    value = getattr(module, name or "agent", None)
    if value is None:
        raise UsageError(f"{path} defines no {name or 'agent'!r}; name it: {path}:NAME.")
    if isinstance(value, Agent):
        # An agent object has its settings; the command always passes the number of steps.
        if set(config) - {"max_steps"}:
            raise UsageError(
                f"{target} is a ready agent and takes no --config; set {_names(config)} there."
            )
        return value
    if inspect.isclass(value) and issubclass(value, Agent):
        return value(**_accepted(value, config))
    if not callable(value):
        raise UsageError(f"{target} is a {type(value).__name__}, neither an agent nor a script.")
    required = ScriptedAgent(value)
    if required.is_policy:
        return ScriptedAgent(value, name=name or "agent", **config)
    return _script(target, ScriptedAgent(value, name=name or "agent"), config)


def _script(said: str, script: Agent, config: dict[str, Any]) -> Agent:
    """Return a script of the whole run; the number of steps is ignored, other settings are rejected."""
    if set(config) - {"max_steps"}:
        raise UsageError(f"{said} is a script of the whole run and takes no {_names(config)}.")
    return script


def _accepted(made: type[Agent], config: dict[str, Any]) -> dict[str, Any]:
    """Remove the number of steps for a class without it; reject other unknown settings."""
    parameters = inspect.signature(made).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return config
    unknown = sorted(set(config) - set(parameters) - {"max_steps"})
    if unknown:
        raise UsageError(f"{made.__name__} takes no {', '.join(unknown)}.")
    return {key: value for key, value in config.items() if key in parameters}


def _names(config: dict[str, Any]) -> str:
    return ", ".join(sorted(set(config) - {"max_steps"}))
