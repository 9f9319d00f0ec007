"""The agent that plays the scripts of the categories, with the tools that every agent has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.agents import ScriptedAgent
from hud.errors import EnvironmentFault
from hud_benchmarks.autonomy.category import Script


def oracle(scripts: Mapping[str, Mapping[str, Script]]) -> ScriptedAgent:
    """Return an agent that plays the script of a task's category and kind.

    A task without a script is not measured: its run ends with an `EnvironmentFault`, which enters no mean.
    """

    async def play(run: Any) -> None:
        columns = run.task.columns
        script = scripts[columns["category"]].get(columns["kind"])
        if script is None:
            raise EnvironmentFault(f"No script does {run.task.slug!r}.")
        await script(run)

    return ScriptedAgent(play, name="oracle")
