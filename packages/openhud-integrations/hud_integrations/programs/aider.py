"""aider, a pair programmer that edits files by text, without tools."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe


class AiderConfig(ProgramConfig):
    """Settings of aider."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="aider",
        command=(
            *("aider", "--model", "openai/{model}", "--message-file", "{prompt_file}"),
            *(
                "--yes-always",
                "--no-pretty",
                "--no-gitignore",
                "--no-auto-commits",
                "--no-show-model-warnings",
            ),
            *("--no-check-update", "--no-show-release-notes", "--analytics-disable"),
            # Else they lie among the task's files.
            *("--chat-history-file", "{home}/.hud-run/chat.md"),
            *("--input-history-file", "{home}/.hud-run/input"),
        ),
        install="pip install aider-chat",
        variables={
            "OPENAI_API_BASE": "{base_url}",
            "OPENAI_API_KEY": "{key}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        takes_tools=False,
    )


KIND = program_kind("aider", AiderConfig)
