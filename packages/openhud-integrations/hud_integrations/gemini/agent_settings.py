"""`GeminiConfig` and `GeminiCUAConfig`, and the agent types with them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hud.agents.providers.agent_kind import AgentKind
from hud.agents.types import ProviderConfig


class GeminiConfig(ProviderConfig):
    """Settings of an agent over Gemini's generateContent."""

    model: str = Field(default="gemini-3-pro-preview", alias="checkpoint_name")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_output_tokens: int = Field(default=8192, ge=1)
    thinking_level: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    include_thoughts: bool = True
    """Record summaries of the model's thoughts."""
    safety_checks: Literal["acknowledge", "stop"] = "acknowledge"
    """Treatment of a computer action that the provider wants a person to confirm: it is executed and noted in the trace,
    or it ends the run."""


class GeminiCUAConfig(GeminiConfig):
    """Settings of an agent with Gemini's native computer tool."""

    model: str = Field(default="gemini-3.5-flash", alias="checkpoint_name")
    max_steps: int = Field(default=50, ge=1)
    tool_timeout_seconds: float | None = Field(default=120.0, gt=0)


GEMINI_KIND = AgentKind("gemini", "GeminiAgent", GeminiConfig, r"gemini-", top_p="top_p")
COMPUTER_USE = AgentKind(
    "gemini_cua",
    "GeminiCUAAgent",
    GeminiCUAConfig,
    r"gemini-.*computer-use",
    top_p="top_p",
    narrows="gemini",
)
