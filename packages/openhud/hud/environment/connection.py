"""`Connection`: the interface of a run's environment, local or remote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hud.capabilities import Capability
from hud.environment.run_snapshot import EnvironmentSnapshot
from hud.environment.templates.agent_tool import Delegation
from hud.environment.templates.prompts import StartFrame
from hud.trace import ToolResult, ToolSpec, Trace

TURN_REWARD = "turn_reward"
"""Key of an observation, a step's `extra` and a grade frame: reward of the agent's turn, recorded since the last observation."""


@dataclass(frozen=True)
class ToolOutcome:
    """Result of a tool call, with the observation of the environment after it."""

    result: ToolResult
    observed: dict[str, Any] = field(default_factory=dict)
    """`state` (of `@env.observe`); `screenshot` (an image block), `files`, `resources` (of parts); `tools` if changed;
    `turn_reward` if one was recorded."""


class Connection(Protocol):
    """A run's environment. Exactly one task is started and graded over it."""

    name: str
    version: str
    reward_range: tuple[float, float]
    address: str
    """Address of the environment: `local`, or a URL."""

    @property
    def capabilities(self) -> list[Capability]:
        """Capabilities for agents, with addresses on the environment's machine; see `reach`."""
        ...

    async def list_tools(self) -> list[ToolSpec]:
        """Return the environment's tools."""
        ...

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, timeout: float | None = None
    ) -> ToolOutcome:
        """Call a tool. The tool's own failures are error results, not exceptions."""
        ...

    async def delegate(self, name: str, arguments: dict[str, Any] | str) -> Delegation | ToolResult:
        """Return the delegated task of a subagent tool's call, or an error result for wrong arguments.

        Raises `EnvironmentFault` if the environment cannot make the subagent's task.
        """
        ...

    async def nested(self, name: str) -> Connection:
        """Open a new run of a subagent's environment, nested in this one; the caller closes it."""
        ...

    async def reach(self, capability: Capability) -> Capability:
        """Return `capability` with an address reachable from this machine."""
        ...

    async def observe(self) -> dict[str, Any]:
        """Return the new observations after a tool that used a capability directly."""
        ...

    async def snapshot(self) -> EnvironmentSnapshot:
        """Return the environment's files after a step; without any where it declares no snapshots, or cannot take one."""
        ...

    async def restore(self, parts: Mapping[str, bytes]) -> str | None:
        """Restore a snapshot's files right after `start`; returns the reason of a failure, after which the run is unusable."""
        ...

    async def list_tasks(self) -> list[dict[str, Any]]:
        """Return a row for each template: `{id, description, args, input?, returns?}`, schemas as JSON schema."""
        ...

    async def start(
        self, task_id: str, args: dict[str, Any], *, training_progress: float | None = None
    ) -> StartFrame:
        """Run the setup half of a template. Raises `EnvironmentFault`, or `UsageError` for wrong arguments.

        `training_progress`: completed share of the training run, 0 to 1; None outside training.
        """
        ...

    async def grade(self, answer: str, trace: Trace | None) -> dict[str, Any]:
        """Run the grading half; returns `{score, done, content?, info?, subscores?}`. Raises `GraderFault`."""
        ...

    async def cancel(self) -> None:
        """Cancel the started task."""
        ...

    async def close(self) -> None:
        """End the run: run the shutdown hooks and free the run's resources."""
        ...
