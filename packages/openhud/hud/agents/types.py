"""Configurations of agents, and their recorded steps.

A configuration is flat and typed; an unknown key is an error. Those of agents that packages register have names here, too.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hud.agents.context_window import ContextPolicy, check_compaction
from hud.trace import AgentStep, Citation, Sample, SubagentStep, ToolStep, Usage

StopCondition = Literal["length", "malformed_tool_call"]
"""A finish reason that may end the run: the turn reached its token limit, or its tool call could not be parsed."""

NativeTool = Literal["bash", "editor", "computer", "mcp"]
"""Native tools, available with the matching capability; `mcp`: the tools of MCP servers."""
_NATIVE: frozenset[NativeTool] = frozenset({"bash", "editor", "computer", "mcp"})


class AgentConfig(BaseModel):
    """Settings of every agent with the tool loop."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    model: str = Field(default="", alias="checkpoint_name")
    """Slug of the model on its server."""
    model_name: str | None = None
    """Display name of the model; default: its slug."""
    max_steps: int = Field(default=10, ge=1)
    """Maximum model calls in a run. Tool calls of the last one are still executed."""
    total_steps: int | None = Field(default=None, ge=1)
    """Maximum model calls of a run and all its subagents together."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens sampled by a run and all its subagents together."""
    timeout_seconds: float | None = Field(default=None, gt=0)
    """Time limit of the agent, in seconds; its answer so far is graded (stop reason `timeout`)."""
    tool_timeout_seconds: float | None = Field(default=None, gt=0)
    """Time-out of a tool call, in seconds; the model receives an error result."""
    system_prompt: str | None = None
    stop_on: frozenset[StopCondition] = frozenset({"length", "malformed_tool_call"})
    """Finish reasons that end the run. For others the model gets a message and continues."""
    native_tools: frozenset[NativeTool] = _NATIVE
    """Native tools for the environment's capabilities: a shell and an editor over `ssh`, a computer over `cdp` or `rfb`,
    the tools of servers over `mcp`. Omit `computer` for a model without image input."""
    context_policy: ContextPolicy = "stop"
    """Behaviour when the conversation exceeds the context window. `stop`: the run ends (stop reason `length`).
    `drop_images`: the older half of the images in tool results is removed and the call repeated, until one image is left.
    `compact`: from `compact_at` tokens on, the conversation is replaced by the prompt and a summary."""
    compact_at: int | None = Field(default=None, ge=1)
    """With `compact`: tokens of a turn's prompt and output from which on the conversation is summarized before the next
    turn."""
    compact_model: str | None = None
    """With `compact`: slug of the model that summarizes; None: the agent's own, which samples the summary as a turn."""
    auto_respond: bool = False
    """Reply to a turn with a question, or without text, by a fixed request to decide alone."""
    gateway: bool = False
    """Use the gateway (`HUD_GATEWAY_URL`, else `HUD_API_URL`) with `HUD_API_KEY`, even if the provider's own key is
    set."""

    @model_validator(mode="after")
    def _compaction_fits(self) -> Self:
        check_compaction(self.context_policy, self.compact_at, self.compact_model)
        return self


class OpenAIChatConfig(AgentConfig):
    """Settings of an agent over chat completions, local or served."""

    checkpoint: str | None = None
    """Checkpoint of the model; None: its head."""
    api_key: str | None = None
    """None: `HUD_API_KEY`."""
    base_url: str | None = None
    """Base URL of `/chat/completions`; None: `HUD_GATEWAY_URL`, else `HUD_API_URL`."""
    stream: bool = False
    """Stream responses; not possible with token ids, for training."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Time-out of a request, or of the next chunk of a streamed response, in seconds; then it is retried."""
    completion_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters (`max_tokens`, `temperature`, `top_p`, `top_k`, `stop`, `seed`); others are sent to a server
    unchanged, and rejected by a model in this process."""


class ProviderConfig(AgentConfig):
    """Settings of every agent with a provider's dialect."""

    api_key: str | None = None
    """None: the provider's variable, such as `OPENAI_API_KEY`; if unset, the gateway and `HUD_API_KEY`."""
    base_url: str | None = None
    """Base URL of the provider; None: its default, or the gateway (see `endpoints`)."""
    stream: bool = False
    """Stream responses, so that long ones do not exceed a proxy's time limit."""
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Time-out of a request, or of the next chunk of a streamed response, in seconds; then it is retried."""
    hosted_tools: list[dict[str, Any]] = Field(default_factory=list)
    """Declarations of tools that the provider executes, such as a web search."""


__all__ = [
    "AgentConfig",
    "AgentStep",
    "Citation",
    "NativeTool",
    "OpenAIChatConfig",
    "ProviderConfig",
    "Sample",
    "StopCondition",
    "SubagentStep",
    "ToolStep",
    "Usage",
]


def __getattr__(name: str) -> Any:
    """Return the configuration class of a registered agent type."""
    if name.endswith("Config"):
        from hud.agents.providers.agent_kind import agent_kinds  # Imports the types' packages.

        for kind in agent_kinds().values():
            if kind.settings.__name__ == name:
                return kind.settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
