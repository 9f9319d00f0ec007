"""`ClaudeConfig`, and the agent type with it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hud.agents.providers.agent_kind import AgentKind
from hud.agents.types import ProviderConfig


class ClaudeConfig(ProviderConfig):
    """Settings of an agent over Anthropic's Messages API."""

    model: str = Field(default="claude-sonnet-4-6", alias="checkpoint_name")
    max_tokens: int = Field(default=16384, ge=1)
    thinking: dict[str, Any] | None = None
    """For example `{"type": "adaptive"}`, or `{"type": "enabled", "budget_tokens": 8000}` for older models."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    citations_enabled: bool = False
    """Send tool results as documents that Claude can cite."""
    betas: list[str] = Field(default_factory=list)
    """Values of the `anthropic-beta` header, in addition to those of the tools."""
    tool_timeout_seconds: float | None = Field(default=120.0, gt=0)


CLAUDE = AgentKind(
    "claude", "ClaudeAgent", ClaudeConfig, r"claude-", max_tokens="max_tokens", temperature=None
)
