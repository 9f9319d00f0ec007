"""Gemini CLI, Google's agent in a terminal."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe

_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "tools": {"exclude": ["google_web_search", "web_fetch"]},
}
_TOOLS = {"mcpServers": {"environment": {"httpUrl": "{mcp_url}", "trust": True}}}


class GeminiCLIConfig(ProgramConfig):
    """Settings of Gemini CLI."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="Gemini CLI",
        command=("gemini", "--yolo", "--skip-trust", "-p", "{prompt}"),
        install="npm install -g @google/gemini-cli",
        variables={
            "GOOGLE_GEMINI_BASE_URL": "{server}",
            "GEMINI_API_KEY": "{key}",
            "GEMINI_MODEL": "{model}",
        },
        files={".gemini/settings.json": _SETTINGS},
        mcp_files={".gemini/settings.json": _TOOLS},
    )


KIND = program_kind("gemini-cli", GeminiCLIConfig)
