"""`Connection`: one run's world, whether it lives in this process or far away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from hud.capabilities import Capability
from hud.environment.templates.prompts import StartFrame
from hud.environment.tools.agent_tool import Delegation
from hud.trace import ToolResult, ToolSpec, Trace


@dataclass(frozen=True)
class ToolOutcome:
    """Result of a tool call, with the observation of the environment after it."""

    result: ToolResult
    observed: dict[str, Any] = field(default_factory=dict)
    """`state` (what `@env.observe` returned); of the parts `screenshot` (an image block), `files`, `resources`; `tools` where
    these are others now."""


class Connection(Protocol):
    """One run's environment. Exactly one task is started and graded over it."""

    name: str
    version: str
    reward_range: tuple[float, float]
    address: str
    """Address of the environment: `local`, or a URL."""

    @property
    def capabilities(self) -> list[Capability]:
        """Capabilities for agents, with the addresses of the environment's machine; see `reach`."""
        ...

    async def list_tools(self) -> list[ToolSpec]:
        """Return the environment's tools."""
        ...

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, timeout: float | None = None
    ) -> ToolOutcome:
        """Call a tool. What goes wrong inside the tool is an error result, not an exception."""
        ...

    async def delegate(self, name: str, arguments: dict[str, Any] | str) -> Delegation | ToolResult:
        """Return what a call of a subagent's tool delegates, or an error result for wrong arguments.

        Raises `EnvironmentFault` where the environment cannot say what the subagent is to do.
        """
        ...

    async def nested(self, name: str) -> Connection:
        """Open a fresh run of a subagent's environment, nested in this one; whoever asks closes it."""
        ...

    async def reach(self, capability: Capability) -> Capability:
        """Return `capability` with an address that works from here."""
        ...

    async def observe(self) -> dict[str, Any]:
        """Return what is new to be seen, after a tool that worked past the environment (over a capability)."""
        ...

    async def list_tasks(self) -> list[dict[str, Any]]:
        """Return a row for each template: `{id, description, args, input?, returns?}`, schemas as JSON schema."""
        ...

    async def start(
        self, task_id: str, args: dict[str, Any], *, training_progress: float | None = None
    ) -> StartFrame:
        """Run the setup half of a template. Raises `EnvironmentFault`, or `UsageError` for wrong arguments.

        `training_progress`: share of the training that is done, 0 to 1, where the run is played for one.
        """
        ...

    async def grade(self, answer: str, trace: Trace | None) -> dict[str, Any]:
        """Run the grading half; returns `{score, done, content?, info?, subscores?}`. Raises `GraderFault`."""
        ...

    async def cancel(self) -> None:
        """Drop the started task."""
        ...

    async def close(self) -> None:
        """End the run: shutdown hooks run, and what the run held is freed."""
        ...
