"""Claude Code, Anthropic's agent in a terminal."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe


class ClaudeCodeConfig(ProgramConfig):
    """Settings of Claude Code."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="Claude Code",
        command=(
            *("claude", "-p", "{prompt}", "--model", "{model}"),
            *("--permission-mode", "bypassPermissions", "--disallowedTools", "WebSearch,WebFetch"),
        ),
        install="npm install -g @anthropic-ai/claude-code",
        variables={
            "ANTHROPIC_BASE_URL": "{server}",
            "ANTHROPIC_API_KEY": "{key}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "DISABLE_AUTOUPDATER": "1",
            # Without it, root may not bypass permissions.
            "IS_SANDBOX": "1",
        },
        mcp_arguments=("--mcp-config", "{mcp_config}", "--strict-mcp-config"),
    )


KIND = program_kind("claude-code", ClaudeCodeConfig)
