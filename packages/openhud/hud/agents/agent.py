"""The `Agent` contract: one method that plays a run.

An agent accesses its run through `RunView`: prompt, tools and trace. It is independent of the environment's location, of
grading and of recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from hud.agents.budget import Budget
from hud.agents.types import AgentConfig
from hud.capabilities import Capability, CapabilityClient
from hud.environment.part import RunTool
from hud.environment.templates.task import Player
from hud.trace import Message, Step, ToolCall, ToolResult, ToolSpec, Trace


class RunView(Protocol):
    """An agent's view of its run."""

    trace: Trace
    tools: list[ToolSpec]

    @property
    def budget(self) -> Budget:
        """Budget of steps and tokens of the run and its subagents."""

    @property
    def trace_id(self) -> str: ...

    @property
    def agent_state(self) -> Mapping[str, Any] | None:
        """State of the agent after the turn from which the run goes on; None: it begins."""

    @property
    def agent_config(self) -> dict[str, Any]:
        """The task's agent settings, which override the agent's own."""

    @property
    def prompt_messages(self) -> list[Message]:
        """The prompt as chat messages."""

    @property
    def prompt_text(self) -> str:
        """The text of the prompt."""

    @property
    def capabilities(self) -> list[Capability]:
        """Capabilities of the environment."""

    async def open(self, reference: str) -> CapabilityClient:
        """Connect to the capability of that name or protocol, once for each run; it is closed with the run."""

    def attach(self, tool: RunTool) -> None:
        """Add a tool of the agent's side, such as a shell over a capability, to `tools`."""

    async def call_tool(self, call: ToolCall, *, timeout: float | None = None) -> ToolResult:
        """Call a tool and record the step; a tool's own failure is an error result."""

    def record(self, step: Step) -> Step:
        """Append a finished step to the trace and make it durable."""

    async def turn_ended(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Take a snapshot of the run after a turn and its tool calls, where its environment declares snapshots.

        `state` returns what the agent needs to go on from here, as plain data.
        """


class PlayableRun(RunView, Protocol):
    """A run that is played and graded in one call."""

    async def play(self, agent: Agent) -> None: ...


PlayedRun = TypeVar("PlayedRun", bound=PlayableRun)


class Agent(ABC):
    """Base class of agents. Subclasses implement `__call__`, and may be used by concurrent runs.

    The answer is `run.trace.content`, set by the agent and graded by the environment.
    """

    subagents: Mapping[str, Player] = MappingProxyType({})
    """Agents of subagents, in any form (`hud.agents.agent_forms`), by the tool's name or by the environment's model of the tool.
    Others use the environment's model."""
    make_subagent: Callable[[str], Agent] | None = None
    """Factory of a subagent's agent by model slug; None: `create_agent`."""
    training_progress: float | None = None
    """Completed share of the training whose runs it plays, 0 to 1; None: that of the run, which has none outside training."""

    @property
    def hosted_config(self) -> AgentConfig | None:
        """Settings from which the platform makes the same agent; None: code of this process alone."""
        return None

    @property
    def hosted_sampling(self) -> Mapping[str, Any] | None:
        """Plain data from which a worker of the fleet samples the same turns; None: its own seeds."""
        return None

    @property
    def model_name(self) -> str | None:
        """Name of the agent's model, if it has one."""
        return None

    async def prepare(self) -> None:
        """Prepare for a batch of runs; raises `UsageError` for permanent errors."""
        return

    @abstractmethod
    async def __call__(self, run: RunView) -> None:
        """Play `run` and set the answer, `run.trace.content`."""

    async def aclose(self) -> None:
        """Close the agent's connections, if any; it may be used again."""
        return

    async def run(self, run: PlayedRun) -> PlayedRun:
        """Play and grade `run`; `reward` and `trace` of the returned run are final."""
        await self.prepare()
        await run.play(self)
        return run
