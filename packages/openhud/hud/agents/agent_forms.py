"""Forms of an agent, and their conversion: one rule for evaluations, chats, subagents and `hud eval`.

an `Agent`, or its class               itself; a class is created with the settings
a function of `(run)`                  plays the whole run, and returns the answer
a function of `(messages, tools, trace)`  plays a turn, and returns text or tool calls
SLUG                                   a model of this machine, of the platform that HUD_API_URL names, or of a provider
the name of a registered type (`hud.agents.agent_kinds`), such as claude or openai_compatible
                                       its agent, with its own model or the setting `model`
http://host:port/path                  an agent behind HTTP (`hud.agents.programs.http_agent`), with the setting `model`
human, nothing                         a person at this terminal; an agent that does nothing
path.py:name                           one of the first three, from a file; default name: `agent`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hud.agents.agent import Agent
from hud.environment.templates.task import Player
from hud.errors import NotFoundError, UsageError

FORMS = "a model's slug, an Agent, a function of (run), or a function of (messages, tools, trace)"
HUMAN = "human"
NOTHING = "nothing"
_BOUNDS = frozenset({"max_steps", "tool_timeout_seconds"})
"""Settings that a form without them ignores: a script has no turns, and the run bounds its tool calls."""

_CARRIED = ("prepare", "aclose", "subagents", "make_subagent", "training_progress")
"""Attributes of `Agent` that a function or a callable object may have."""


def as_agent(form: Player, config: Mapping[str, Any] | None = None) -> Agent:
    """Return the agent of a form, with the settings `config`. Raises `UsageError` for another form or setting."""
    return _converted(form, dict(config or {}), None)


def is_file(name: str) -> bool:
    """Return True for the name of an agent in a file, `path.py:name`."""
    return name.partition(":")[0].endswith(".py")


def is_address(name: str) -> bool:
    """Return True for the address of a server."""
    return name.startswith(("http://", "https://"))


def is_program(name: str) -> bool:
    """Return True for the name of an agent with a tool loop of its own: a program, or the address of an agent's server."""
    from hud.agents.providers.agent_kind import agent_kinds

    kind = agent_kinds().get(name)
    return is_address(name) or (kind is not None and kind.program)


def _converted(form: Any, config: dict[str, Any], where: str | None) -> Agent:
    """Convert a form; `where` names its place in a file."""
    if isinstance(form, Agent):
        return _ready(form, config, f"{where or type(form).__name__} is a ready agent and")
    if isinstance(form, str):
        return _named(form, config)
    if inspect.isclass(form):
        return _of_class(form, config)
    if callable(form):
        return _of_function(form, config, where)
    kind = type(form).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    raise UsageError(f"{where or 'An agent'} is {FORMS}, not {article} {kind}.")


def _ready(agent: Agent, config: dict[str, Any], subject: str) -> Agent:
    """Return an agent that takes no further settings."""
    refused = sorted(config.keys() - _BOUNDS)
    if refused:
        raise UsageError(f"{subject} takes no {', '.join(refused)}; set it where it is created.")
    return agent


def _of_class(form: type, config: dict[str, Any]) -> Agent:
    if not issubclass(form, Agent):
        raise UsageError(
            f"{form.__name__} is a class and no subclass of hud.agents.Agent; an agent is {FORMS}."
        )
    parameters = inspect.signature(form).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        unknown = sorted(config.keys() - parameters.keys() - _BOUNDS)
        if unknown:
            raise UsageError(f"{form.__name__} takes no {', '.join(unknown)}.")
        config = {name: value for name, value in config.items() if name in parameters}
    try:
        inspect.signature(form).bind(**config)
        return form(**config)
    except TypeError as error:
        raise UsageError(f"{form.__name__} cannot be created: {error}.") from error


def _of_function(form: Callable[..., Any], config: dict[str, Any], where: str | None) -> Agent:
    from hud.agents.scripted import ScriptedAgent

    script = ScriptedAgent(form)
    if not script.is_policy:
        _ready(script, config, f"{where or script.name} is a script of the whole run and")
    elif config:
        script = ScriptedAgent(form, **_policy_settings(script.name, config))
    for attribute in _CARRIED:
        if hasattr(form, attribute):
            setattr(script, attribute, getattr(form, attribute))
    return script


def _policy_settings(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the tool loop. Raises `UsageError` for others."""
    from hud.agents.types import AgentConfig

    unknown = sorted(config.keys() - AgentConfig.model_fields.keys())
    if unknown:
        settings = ", ".join(sorted(AgentConfig.model_fields))
        raise UsageError(f"{name} takes no {', '.join(unknown)}; it takes {settings}.")
    return config


def _named(name: str, config: dict[str, Any]) -> Agent:
    from hud.agents.agent_kinds import agent_of, settings_of
    from hud.agents.providers.agent_kind import agent_kinds

    if is_file(name):
        return _from_file(name, config)
    if is_address(name):
        return agent_of("http", settings_of("http", {**config, "url": name}, whose="--config"))
    if name in agent_kinds():
        _check_server(name, config)
        return agent_of(name, settings_of(name, config, whose="--config"))
    if name == HUMAN:
        return _human(config)
    if name == NOTHING:
        from hud.agents import scripted

        return _ready(scripted.NOTHING, config, f"{NOTHING} is a script of the whole run and")
    from hud.agents.catalogue import create_agent

    return create_agent(name, **config)


def _check_server(kind: str, config: dict[str, Any]) -> None:
    """Raise `UsageError` for a server of chat completions without its model or address."""
    from hud import settings
    from hud.agents.agent_kinds import SERVED

    if kind != SERVED:
        return
    if not config.get("model"):
        raise UsageError(f"{SERVED} needs --model, the name of the model on its server.")
    if not config.get("base_url") and settings.load().gateway_url is None:
        raise UsageError(
            f"{SERVED} needs the address of its server: --config base_url=http://host:port/v1, "
            "or HUD_API_URL (or HUD_GATEWAY_URL) of a platform."
        )


def _human(config: dict[str, Any]) -> Agent:
    from hud.agents.human import HumanAgent

    settings = {"timeout_seconds", "tool_timeout_seconds", "name"}
    unknown = sorted(config.keys() - settings - {"max_steps", "auto_respond"})
    if unknown:
        raise UsageError(
            f"{HUMAN} takes no {', '.join(unknown)}; it takes {', '.join(sorted(settings))}."
        )
    return HumanAgent(**{name: value for name, value in config.items() if name in settings})


def _from_file(target: str, config: dict[str, Any]) -> Agent:
    """Load an agent from `path.py:name`; default name: `agent`."""
    from hud.environment.sources.loader import load_file
    from hud.environment.sources.near_files import no_file

    text, _, name = target.partition(":")
    path, name = Path(text), name or "agent"
    if not path.is_file():
        raise NotFoundError(no_file(path))
    form = getattr(load_file(path), name, None)
    if form is None:
        raise UsageError(f"{path} defines no {name!r}; name it: {path}:NAME.")
    if isinstance(form, str):
        raise UsageError(f"{target} is a str, and no agent: give the slug itself, {form!r}.")
    return _converted(form, config, target)
