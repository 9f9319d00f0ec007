"""Codex, OpenAI's agent in a terminal."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe

_CONFIG = """\
model = "{model}"
model_provider = "openhud"
web_search = "disabled"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.openhud]
name = "OpenHUD"
base_url = "{base_url}"
wire_api = "responses"
env_key = "HUD_API_KEY"
"""
_TOOLS = """
[mcp_servers.environment]
url = "{mcp_url}"
"""


class CodexConfig(ProgramConfig):
    """Settings of Codex."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="Codex",
        command=(
            *("codex", "exec", "--skip-git-repo-check"),
            "--dangerously-bypass-approvals-and-sandbox",
            *("--output-last-message", "{home}/.hud-run/answer.txt", "{prompt}"),
        ),
        install="npm install -g @openai/codex",
        variables={"HUD_API_KEY": "{key}"},
        files={".codex/config.toml": _CONFIG},
        mcp_files={".codex/config.toml": _TOOLS},
        answer_file=".hud-run/answer.txt",
    )


KIND = program_kind("codex", CodexConfig)
