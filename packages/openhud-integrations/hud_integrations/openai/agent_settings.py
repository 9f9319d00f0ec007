"""`OpenAIConfig` and `OperatorConfig`, and the agent types with them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hud.agents.providers.agent_kind import AgentKind
from hud.agents.types import ProviderConfig


class OpenAIConfig(ProviderConfig):
    """Settings of an agent over OpenAI's Responses API; None: the provider's default."""

    model: str = Field(default="gpt-5.6", alias="checkpoint_name")
    max_output_tokens: int | None = Field(default=None, ge=16)
    temperature: float | None = None
    reasoning: dict[str, Any] | None = None
    """For example `{"effort": "high", "summary": "auto"}`."""
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_checks: Literal["acknowledge", "stop"] = "acknowledge"
    """Treatment of a computer action that the provider wants a person to confirm: it is executed and noted in the trace,
    or it ends the run. Environments are sandboxes without personal data, hence the default."""


class OperatorConfig(OpenAIConfig):
    """Settings of an agent that uses a computer over OpenAI's Responses API."""

    max_steps: int = Field(default=50, ge=1)
    tool_timeout_seconds: float | None = Field(default=120.0, gt=0)


OPENAI_KIND = AgentKind(
    "openai", "OpenAIAgent", OpenAIConfig, r"gpt-[3-9]|chatgpt-|codex-|o[1-9](-|$)"
)
OPERATOR = AgentKind(
    "operator", "OperatorAgent", OperatorConfig, r"computer-use-preview", narrows="openai"
)
