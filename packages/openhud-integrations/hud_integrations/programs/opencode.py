"""opencode, an agent in a terminal for many providers."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe

_SETTINGS = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "openhud": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{base_url}", "apiKey": "{key}"},
            "models": {"{model}": {}},
        }
    },
    "permission": {"webfetch": "deny"},
}
_TOOLS = {"mcp": {"environment": {"type": "remote", "url": "{mcp_url}", "enabled": True}}}


class OpencodeConfig(ProgramConfig):
    """Settings of opencode."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="opencode",
        command=("opencode", "run", "-m", "openhud/{model}", "{prompt}"),
        install="npm install -g opencode-ai",
        variables={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
        files={".config/opencode/opencode.json": _SETTINGS},
        mcp_files={".config/opencode/opencode.json": _TOOLS},
    )


KIND = program_kind("opencode", OpencodeConfig)
