"""The kinds of agent, by the names that a catalogue and the command line use, and which kind plays a model.

It loads no agent before one is made, since most processes make one kind.
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
"""The kind that plays with any server of chat completions, models of one's own among them."""


@dataclass(frozen=True)
class AgentKind:
    """A kind of agent: its class in `hud.agents`, and what its settings are."""

    name: str
    agent: str
    settings: type[AgentConfig]
    models: str | None = None
    """Pattern of the models that are this kind's by their names."""


KINDS = {
    kind.name: kind
    for kind in (
        AgentKind("claude", "ClaudeAgent", ClaudeConfig, r"claude-"),
        AgentKind("operator", "OperatorAgent", OperatorConfig, r"computer-use-preview"),
        AgentKind("openai", "OpenAIAgent", OpenAIConfig, r"gpt-[3-9]|chatgpt-|codex-|o[1-9](-|$)"),
        AgentKind("gemini_cua", "GeminiCUAAgent", GeminiCUAConfig, r"gemini-.*computer-use"),
        AgentKind("gemini", "GeminiAgent", GeminiConfig, r"gemini-"),
        AgentKind(SERVED, "OpenAIChatAgent", OpenAIChatConfig),
    )
}
"""Agent types, those with the narrower patterns first."""


def kind_of_model(model: str) -> str | None:
    """Return the kind that plays a provider's model, by the model's name; None for a name that says nothing."""
    for kind in KINDS.values():
        if kind.models is not None and re.match(kind.models, model):
            return kind.name
    return None


def kind_of_settings(settings: object) -> str:
    """Return the kind that settings are for."""
    found = (kind.name for kind in KINDS.values() if type(settings) is kind.settings)
    return next(found, SERVED)


def settings_of(
    kind: str, given: Mapping[str, Any], *, whose: str, hidden: frozenset[str] = frozenset()
) -> AgentConfig:
    """Return the settings of a kind of agent; raises `UsageError` for an unknown or a wrong one.

    `whose` begins the sentence; `hidden` are settings that are not offered there.
    """
    try:
        return KINDS[kind].settings(**given)
    except ValidationError as error:
        problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = ", ".join(sorted(KINDS[kind].settings.model_fields.keys() - hidden))
        raise UsageError(f"{whose}: there is no setting {name!r}; the settings are {known}.")
    raise UsageError(f"{whose}: {name}: {problem['msg']}.")


def agent_of(kind: str, settings: AgentConfig, **fields: Any) -> ToolLoopAgent:
    """Return an agent of a kind; `fields` go over the settings."""
    made: ToolLoopAgent = getattr(agents, KINDS[kind].agent)(settings, **fields)
    return made
