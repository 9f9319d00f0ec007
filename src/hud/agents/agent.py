"""The `Agent` contract: one method that takes a run and plays it.

An agent knows its run through `RunView`: the prompt, the tools, the trace. It knows nothing of where the
environment lives, of grading, or of recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from hud.agents.budget import Budget
from hud.capabilities import Capability, CapabilityClient
from hud.environment.part import RunTool
from hud.trace import Message, Step, ToolCall, ToolResult, ToolSpec, Trace


class RunView(Protocol):
    """View of a run for its agent."""

    trace: Trace
    tools: list[ToolSpec]
    budget: Budget

    @property
    def trace_id(self) -> str: ...

    @property
    def agent_config(self) -> dict[str, Any]:
        """Settings of the agent that the task asks for, over the agent's own."""

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
        """Add a tool that works on the agent's side, such as a shell over a capability, to `tools`."""

    async def call_tool(self, call: ToolCall, *, timeout: float | None = None) -> ToolResult:
        """Call a tool and record the step; a tool's own failure is an error result."""

    def record(self, step: Step) -> Step:
        """Append a finished step to the trace and make it durable."""


class PlayableRun(RunView, Protocol):
    """A run that can be played by an agent and graded in one go."""

    async def play(self, agent: Agent) -> None: ...


PlayedRun = TypeVar("PlayedRun", bound=PlayableRun)


class Agent(ABC):
    """Plays runs. Subclasses implement `__call__`, and may be used by many runs at once.

    The answer is `run.trace.content`: the agent sets it, and the environment grades it.
    """

    subagents: Mapping[str, Agent | str] = MappingProxyType({})
    """Players of subagents: an agent, or a model's slug, by the tool's name or by the model that the environment
    gives it. Those that are not named here play with the model that the environment gives them."""
    make_subagent: Callable[[str], Agent] | None = None
    """Makes the agent for a model's slug that plays a subagent; None: `create_agent`."""

    @property
    def model_name(self) -> str | None:
        """Name of the model behind the agent, where there is one."""
        return None

    async def prepare(self) -> None:
        """Get ready once before a batch of runs; raises `UsageError` for what can never work."""
        return

    @abstractmethod
    async def __call__(self, run: RunView) -> None:
        """Play `run` and leave the answer in `run.trace.content`."""

    async def run(self, run: PlayedRun) -> PlayedRun:
        """Play `run` and have it graded; `reward` and `trace` of what comes back are final."""
        await self.prepare()
        await run.play(self)
        return run
