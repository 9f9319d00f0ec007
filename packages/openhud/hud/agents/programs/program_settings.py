"""Settings of agents with a tool loop of their own: programs, `harness` for any program, and servers behind HTTP."""

from __future__ import annotations

import shlex
from typing import Any, ClassVar

from pydantic import Field, model_validator

from hud.agents.programs.recipe import ProgramRecipe
from hud.agents.providers.agent_kind import AgentKind
from hud.agents.types import AgentConfig

_APPLIED = frozenset(
    {
        "model",
        "model_name",
        "max_steps",
        "total_steps",
        "total_tokens",
        "timeout_seconds",
        "tool_timeout_seconds",
    }
)
"""Settings of the tool loop that a program has, too: limits."""


class OwnLoopConfig(AgentConfig):
    """Settings of an agent with its own tool loop; `max_steps` limits its model calls, and is unlimited unless it is set."""

    checkpoint: str | None = None
    """Checkpoint of a local model; None: its head."""
    completion_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Sampling of every model call in place of the agent's: `max_tokens`, `temperature`, `top_p`."""

    @model_validator(mode="after")
    def _has_no_tool_loop(self) -> OwnLoopConfig:
        loop = AgentConfig.model_fields.keys() - _APPLIED
        if unused := sorted(loop & self.model_fields_set):
            raise ValueError(f"an agent with its own tool loop has no {unused[0]}")
        return self

    @property
    def most_calls(self) -> int | None:
        """Maximum model calls of a run; None: no limit."""
        steps = self.max_steps if "max_steps" in self.model_fields_set else None
        limits = [limit for limit in (steps, self.total_steps) if limit is not None]
        return min(limits, default=None)


class ProgramConfig(OwnLoopConfig):
    """Settings of an agent that is a program."""

    recipe: ClassVar[ProgramRecipe | None] = None
    """The recipe of a named program."""

    arguments: list[str] = Field(default_factory=list)
    """Further words of its command line."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Further environment variables; placeholders as in a command."""
    mounts: list[str] = Field(default_factory=list)
    """Further files and folders of this machine that it needs in a workspace, read-only at the same paths."""

    def program(self) -> ProgramRecipe:
        """Return the recipe."""
        assert self.recipe is not None
        return self.recipe


class HarnessConfig(ProgramConfig):
    """Settings of any program."""

    command: str
    """Its command line, with placeholders: `{prompt_file}`, `{prompt}`, `{base_url}`, `{server}`, `{key}`, `{model}`,
    `{mcp_config}`, `{mcp_url}`, `{workspace}`, `{home}`. No shell reads it."""

    @model_validator(mode="after")
    def _is_a_command(self) -> HarnessConfig:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"it is no command line: {error}") from None
        if not words:
            raise ValueError("it is empty; give a command line such as 'agent {prompt_file}'")
        return self

    def program(self) -> ProgramRecipe:
        return ProgramRecipe(
            name="harness",
            command=tuple(shlex.split(self.command)),
            install="",
            variables={
                "OPENAI_BASE_URL": "{base_url}",
                "OPENAI_API_KEY": "{key}",
                "OPENAI_MODEL": "{model}",
            },
            takes_tools="{mcp_" in self.command or "{mcp_" in str(self.variables),
            version=(),
        )


class HttpAgentConfig(OwnLoopConfig):
    """Settings of an agent behind HTTP."""

    url: str = Field(pattern=r"^https?://[^/]")
    """Address to which each run is posted."""


def program_kind(
    name: str, settings: type[OwnLoopConfig], agent: str = "ProgramAgent"
) -> AgentKind:
    """Return the kind of agents with these settings."""
    return AgentKind(
        name,
        agent,
        settings,
        max_tokens="completion_kwargs.max_tokens",
        temperature="completion_kwargs.temperature",
        top_p="completion_kwargs.top_p",
        program=True,
    )


HARNESS = program_kind("harness", HarnessConfig)
HTTP = program_kind("http", HttpAgentConfig, "HttpAgent")
