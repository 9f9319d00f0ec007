"""Agent types by their names in the catalogue and on the command line, and the type for a model.

Agents are imported when one is created, since most processes use one type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from hud import agents
from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import (
    AgentConfig,
    ClaudeConfig,
    GeminiConfig,
    GeminiCUAConfig,
    OpenAIChatConfig,
    OpenAIConfig,
    OperatorConfig,
)
from hud.errors import UsageError

SERVED = "openai_compatible"
"""The type for any chat-completions server, also for local models."""


@dataclass(frozen=True)
class AgentKind:
    """An agent type: its class in `hud.agents`, and its configuration class."""

    name: str
    agent: str
    settings: type[AgentConfig]
    models: str | None = None
    """Pattern of the model names for this type."""
    max_tokens: str = "max_output_tokens"
    """The type's name of the setting `max_tokens`; a dot nests."""
    temperature: str | None = "temperature"
    """Its name of the setting `temperature`; None: it has none."""


KINDS = {
    kind.name: kind
    for kind in (
        AgentKind("claude", "ClaudeAgent", ClaudeConfig, r"claude-", "max_tokens", None),
        AgentKind("operator", "OperatorAgent", OperatorConfig, r"computer-use-preview"),
        AgentKind("openai", "OpenAIAgent", OpenAIConfig, r"gpt-[3-9]|chatgpt-|codex-|o[1-9](-|$)"),
        AgentKind("gemini_cua", "GeminiCUAAgent", GeminiCUAConfig, r"gemini-.*computer-use"),
        AgentKind("gemini", "GeminiAgent", GeminiConfig, r"gemini-"),
        AgentKind(
            SERVED,
            "OpenAIChatAgent",
            OpenAIChatConfig,
            max_tokens="completion_kwargs.max_tokens",
            temperature="completion_kwargs.temperature",
        ),
    )
}
"""Agent types, narrower patterns first."""


def kind_of_model(model: str) -> str | None:
    """Return the type for a provider's model by its name; None for an unknown name."""
    for kind in KINDS.values():
        if kind.models is not None and re.match(kind.models, model):
            return kind.name
    return None


def kind_of_settings(settings: object) -> str:
    """Return the type of a configuration."""
    names = (kind.name for kind in KINDS.values() if type(settings) is kind.settings)
    return next(names, SERVED)


def settings_of(
    kind: str, values: Mapping[str, Any], *, whose: str, hidden: frozenset[str] = frozenset()
) -> AgentConfig:
    """Return the configuration of an agent type; raises `UsageError` for an unknown or invalid setting.

    `max_tokens` (of a turn) and `temperature` are settings of every type that has them, by whatever name. `whose` begins
    the message; `hidden` are settings to omit from it.
    """
    try:
        return KINDS[kind].settings(**_with_own_names(KINDS[kind], values, whose))
    except ValidationError as error:
        problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        settable = ", ".join(sorted(KINDS[kind].settings.model_fields.keys() - hidden))
        raise UsageError(f"{whose}: there is no setting {name!r}; the settings are {settable}.")
    raise UsageError(f"{whose}: {name}: {problem['msg']}.")


def _with_own_names(kind: AgentKind, values: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return settings with `max_tokens` and `temperature` under the type's own names."""
    own = dict(values)
    for name, place in (("max_tokens", kind.max_tokens), ("temperature", kind.temperature)):
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


def agent_of(kind: str, settings: AgentConfig, **fields: Any) -> ToolLoopAgent:
    """Return an agent of a type; `fields` override the settings."""
    made: ToolLoopAgent = getattr(agents, KINDS[kind].agent)(settings, **fields)
    return made
