"""`Moves`: a person's actions in a run, recorded as turns, for any user interface."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hud.agents.agent import RunView
from hud.trace import AgentStep, ToolCall, ToolResult, new_id

HUMAN = "human"
"""Model name of human players."""
HUMAN_SECONDS = "human_seconds"
"""Key of a trace's `extra`: seconds from the task's display to its end."""


class Moves:
    """A run played by a person. `started` is the beginning of the time to think about a move."""

    def __init__(
        self, run: RunView, *, name: str = HUMAN, tool_timeout_seconds: float | None = None
    ) -> None:
        self.run = run
        self.name = name
        self.tool_timeout_seconds = tool_timeout_seconds

    async def call(self, tool: str, arguments: dict[str, Any], started: datetime) -> ToolResult:
        """Call a tool; its own failure is an error result."""
        call = ToolCall(id=f"call_{new_id()[:8]}", name=tool, arguments=arguments)
        self.run.record(
            AgentStep(
                tool_calls=[call],
                finish_reason="tool_calls",
                model=self.name,
                started_at=started,
            )
        )
        return await self.run.call_tool(call, timeout=self.tool_timeout_seconds)

    def answer(self, text: str, started: datetime) -> None:
        """Set the answer to be graded."""
        self.run.trace.content = text
        self.run.record(
            AgentStep(
                content=text,
                done=True,
                finish_reason="stop",
                model=self.name,
                started_at=started,
            )
        )
