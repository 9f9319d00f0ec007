"""Qwen Code, an agent in a terminal for chat completions."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe

_SETTINGS = {
    "general": {"enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
_TOOLS = {"mcpServers": {"environment": {"httpUrl": "{mcp_url}", "trust": True}}}


class QwenCodeConfig(ProgramConfig):
    """Settings of Qwen Code."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="Qwen Code",
        command=("qwen", "--yolo", "--auth-type", "openai", "-p", "{prompt}"),
        install="npm install -g @qwen-code/qwen-code",
        variables={
            "OPENAI_BASE_URL": "{base_url}",
            "OPENAI_API_KEY": "{key}",
            "OPENAI_MODEL": "{model}",
        },
        files={".qwen/settings.json": _SETTINGS},
        mcp_files={".qwen/settings.json": _TOOLS},
    )


KIND = program_kind("qwen-code", QwenCodeConfig)
