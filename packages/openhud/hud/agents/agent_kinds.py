"""Agent types by their names in the catalogue and on the command line, and the type for a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from hud import agents
from hud.agents.agent import Agent
from hud.agents.providers.agent_kind import AgentKind, agent_kinds
from hud.agents.types import AgentConfig, OpenAIChatConfig
from hud.errors import UsageError

SERVED = "openai_compatible"
"""The type for any chat-completions server, also for local models."""


SERVED_KIND = AgentKind(
    SERVED,
    "OpenAIChatAgent",
    OpenAIChatConfig,
    max_tokens="completion_kwargs.max_tokens",
    temperature="completion_kwargs.temperature",
    top_p="completion_kwargs.top_p",
)


def kind_of_model(model: str) -> str | None:
    """Return the type for a provider's model by its name; None for an unknown name."""
    lengths = {
        kind.name: match.end()
        for kind in agent_kinds().values()
        if kind.models is not None and (match := re.match(kind.models, model))
    }
    return max(lengths, key=lambda name: lengths[name], default=None)


def kind_of_settings(settings: object) -> str:
    """Return the type of a configuration."""
    names = (kind.name for kind in agent_kinds().values() if type(settings) is kind.settings)
    return next(names, SERVED)


def settings_of(
    kind: str, values: Mapping[str, Any], *, whose: str, hidden: frozenset[str] = frozenset()
) -> AgentConfig:
    """Return the configuration of an agent type; raises `UsageError` for an unknown or invalid setting.

    `max_tokens` (of a turn), `temperature` and `top_p` are settings of every type that has them, by whatever name. `whose`
    begins the message; `hidden` are settings to omit from it.
    """
    try:
        return agent_kinds()[kind].settings(**_with_own_names(agent_kinds()[kind], values, whose))
    except ValidationError as error:
        problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        settable = ", ".join(sorted(agent_kinds()[kind].settings.model_fields.keys() - hidden))
        raise UsageError(f"{whose}: there is no setting {name!r}; the settings are {settable}.")
    raise UsageError(f"{whose}: {name}: {problem['msg']}.")


def _with_own_names(kind: AgentKind, values: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return settings with `max_tokens`, `temperature` and `top_p` under the type's own names."""
    places = {"max_tokens": kind.max_tokens, "temperature": kind.temperature, "top_p": kind.top_p}
    own = dict(values)
    for name, place in places.items():
        if name not in own:
            continue
        if place is None:
            raise UsageError(f"{whose}: {kind.name} takes no {name}.")
        outer, _, inner = place.rpartition(".")
        value = own.pop(name)
        if outer:
            own[outer] = {**own.get(outer, {}), inner: value}
        else:
            own[inner] = value
    return own


def agent_of(kind: str, settings: AgentConfig, **fields: Any) -> Agent:
    """Return an agent of a type; `fields` override the settings."""
    made: Agent = getattr(agents, agent_kinds()[kind].agent)(settings, **fields)
    return made
