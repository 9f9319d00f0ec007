"""Configurations of agents, and the steps that they record.

A configuration is flat and typed; an unknown key is an error, so that no setting is accepted and ignored.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hud.trace import AgentStep, Citation, Sample, SubagentStep, ToolStep, Usage

StopCondition = Literal["length", "malformed_tool_call"]
"""A finish reason that may end the run: the turn hit its token limit, or its tool call was unreadable."""

NativeTool = Literal["bash", "editor", "computer", "mcp"]
"""Tools that an agent has of its own where its environment offers what they work over; `mcp`: those of servers."""
_NATIVE: frozenset[NativeTool] = frozenset({"bash", "editor", "computer", "mcp"})


class AgentConfig(BaseModel):
    """Settings of every agent that runs the tool loop."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    model: str = Field(default="", alias="checkpoint_name")
    """Slug of the model, as its server knows it."""
    model_name: str | None = None
    """Name to show for the model; its slug where missing."""
    max_steps: int = Field(default=10, ge=1)
    """Most model calls in a run. Tool calls of the last one are still executed."""
    total_steps: int | None = Field(default=None, ge=1)
    """Most model calls of a run and all its subagents together."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Most tokens that a run and all its subagents may draw together."""
    timeout_seconds: float | None = Field(default=None, gt=0)
    """Time that the agent may take; what it has by then is graded (stop reason `timeout`)."""
    tool_timeout_seconds: float | None = Field(default=None, gt=0)
    """Time for one tool call; the model sees a tool error when it passes."""
    system_prompt: str | None = None
    stop_on: frozenset[StopCondition] = frozenset({"length", "malformed_tool_call"})
    """Finish reasons that end the run. For those left out, the model is told and goes on."""
    native_tools: frozenset[NativeTool] = _NATIVE
    """Tools that the agent makes of the environment's capabilities: a shell and an editor over `ssh`, a computer over
    `cdp` or `rfb`, the tools of servers over `mcp`. A model without eyes does better without `computer`."""
    context_policy: Literal["stop", "drop_images"] = "stop"
    """Behaviour when the conversation outgrows the model's window: the run ends (stop reason `length`), or the
    older half of the tools' pictures is left out and the model is asked again, until one picture is left."""
    auto_respond: bool = False
    """Answer a turn that asks a question, or says nothing, by a fixed nudge to decide alone."""
    gateway: bool = False
    """Ask through the gateway (`HUD_GATEWAY_URL`, else `HUD_API_URL`) with `HUD_API_KEY`, even where the provider's own
    key is set."""


class OpenAIChatConfig(AgentConfig):
    """Settings of an agent over chat completions, local or served."""

    checkpoint: str | None = None
    """Pins a checkpoint of the model; None follows its head."""
    api_key: str | None = None
    """None: `HUD_API_KEY`."""
    base_url: str | None = None
    """Base URL of `/chat/completions`; None: `HUD_GATEWAY_URL`, else `HUD_API_URL`."""
    stream: bool = False
    """Read answers as they are written; not with token ids, for training."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Time for one request, or for the next piece of a streamed answer; what takes longer is asked again."""
    completion_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters (`max_tokens`, `temperature`, `top_p`, `top_k`, `stop`, `seed`); others are sent
    to a server as they are, and refused by a model in this process."""


class ProviderConfig(AgentConfig):
    """Settings of every agent that asks a provider in the provider's own dialect."""

    api_key: str | None = None
    """None: the provider's variable, such as `OPENAI_API_KEY`; without one, the gateway and `HUD_API_KEY`."""
    base_url: str | None = None
    """Base URL of the provider; None: its own, or the gateway (see `endpoints`)."""
    stream: bool = False
    """Read answers as they are written; long ones then cannot run into a proxy's time limit."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Time for one request, or for the next piece of a streamed answer; what takes longer is asked again."""
    hosted_tools: list[dict[str, Any]] = Field(default_factory=list)
    """Tools that the provider runs itself, such as a web search, as the provider declares them."""


class ClaudeConfig(ProviderConfig):
    """Settings of an agent over Anthropic's messages."""

    model: str = Field(default="claude-sonnet-4-6", alias="checkpoint_name")
    max_tokens: int = Field(default=16384, ge=1)
    thinking: dict[str, Any] | None = None
    """Such as `{"type": "adaptive"}`, or `{"type": "enabled", "budget_tokens": 8000}` for older models."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    citations_enabled: bool = False
    """Hand tool results over as documents that Claude can cite."""
    betas: list[str] = Field(default_factory=list)
    """Values for the `anthropic-beta` header, besides those that the tools need."""
    tool_timeout_seconds: float | None = Field(default=120.0, gt=0)


class OpenAIConfig(ProviderConfig):
    """Settings of an agent over OpenAI's responses; what is None is the provider's choice."""

    model: str = Field(default="gpt-5.6", alias="checkpoint_name")
    max_output_tokens: int | None = Field(default=None, ge=16)
    temperature: float | None = None
    reasoning: dict[str, Any] | None = None
    """Such as `{"effort": "high", "summary": "auto"}`."""
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    safety_checks: Literal["acknowledge", "stop"] = "acknowledge"
    """Treatment of a computer action that the provider wants a person to look at: it is carried out, and
    said so in the trace, or it ends the run. What an environment holds is nobody's, hence the default."""


class OperatorConfig(OpenAIConfig):
    """Settings of an agent that uses a computer over OpenAI's responses."""

    max_steps: int = Field(default=50, ge=1)
    tool_timeout_seconds: float | None = Field(default=120.0, gt=0)


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
    """As `OpenAIConfig.safety_checks`."""


class GeminiCUAConfig(GeminiConfig):
    """Settings of an agent that uses a computer with Gemini's own tool."""

    model: str = Field(default="gemini-3.5-flash", alias="checkpoint_name")
    max_steps: int = Field(default=50, ge=1)
    tool_timeout_seconds: float | None = Field(default=120.0, gt=0)


__all__ = [
    "AgentConfig",
    "AgentStep",
    "Citation",
    "ClaudeConfig",
    "GeminiCUAConfig",
    "GeminiConfig",
    "NativeTool",
    "OpenAIChatConfig",
    "OpenAIConfig",
    "OperatorConfig",
    "ProviderConfig",
    "Sample",
    "StopCondition",
    "SubagentStep",
    "ToolStep",
    "Usage",
]
