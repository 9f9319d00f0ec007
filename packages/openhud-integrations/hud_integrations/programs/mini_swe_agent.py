"""mini-swe-agent, a small agent with a shell alone."""

from __future__ import annotations

from typing import ClassVar

from hud.agents.programs.program_settings import ProgramConfig, program_kind
from hud.agents.programs.recipe import ProgramRecipe


class MiniSWEAgentConfig(ProgramConfig):
    """Settings of mini-swe-agent."""

    recipe: ClassVar[ProgramRecipe] = ProgramRecipe(
        name="mini-swe-agent",
        command=(
            *("mini", "-m", "openai/{model}", "-t", "{prompt}", "-y", "--exit-immediately"),
            *("-o", "{home}/.hud-run/trajectory.json"),
        ),
        install="pip install mini-swe-agent",
        variables={
            "OPENAI_API_BASE": "{base_url}",
            "OPENAI_BASE_URL": "{base_url}",
            "OPENAI_API_KEY": "{key}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
        },
        takes_tools=False,
        answer_file=".hud-run/trajectory.json",
        answer_keys=("info", "submission"),
        version=(),
    )


KIND = program_kind("mini-swe-agent", MiniSWEAgentConfig)
