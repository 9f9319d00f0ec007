"""The agent that makes the calls of the package's solution, and says what the customer must be told."""

from __future__ import annotations

from typing import Any

from hud.agents import ScriptedAgent
from hud.trace import ToolCall
from hud_benchmarks.tau2.service import Service


async def _play(run: Any) -> str:
    solved = Service(**run.task.args)
    for place, action in enumerate(solved.solution):
        call = ToolCall(id=f"call_{place}", name=action["name"], arguments=action["arguments"])
        await run.call_tool(call)
    return "\n".join(solved.to_be_said)


oracle = ScriptedAgent(_play, name="oracle")
