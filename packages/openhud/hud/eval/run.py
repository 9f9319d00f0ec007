"""`Run`: an attempt at a task: its record, and its live state with the environment's connection.

Implements tool calls and recording. The order of an attempt and its limits are in `episode`, retries in `rollouts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from hud.agents.budget import Budget
from hud.errors import AgentFault, FailureKind, located
from hud.eval.grade import Grade
from hud.eval.results.run_record import RunRecord
from hud.eval.results.run_summary import RunSummary
from hud.eval.runtimes.capability_clients import OpenClients
from hud.eval.snapshots.snapshots import Snapshots
from hud.eval.waits import PendingCall
from hud.foreign_code import is_failure
from hud.trace import (
    Step,
    TaskCall,
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStep,
    Trace,
    now,
    tool_counts,
)
from hud.trace.json_values import copied
from hud.trace.limits import check_arguments
from hud.trace.recording.recorder import NullRecorder, Recorder
from hud.trace.steps import check_step

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.capabilities import Capability, CapabilityClient
    from hud.environment.connection import Connection, ToolOutcome
    from hud.environment.part import RunTool
    from hud.environment.templates.task import Player, Provider

DEEPEST = 3
"""Maximum nesting depth of subagents."""

Phase = Literal["provision", "setup", "agent", "tool", "grade", "over"]
"""Phase of a run; it determines the failure kind of a time-out."""


@dataclass(eq=False)
class LiveRun:
    """State of a run in the process that plays it: connections, limits, budget."""

    connection: Connection | None = None
    world: AbstractAsyncContextManager[Connection] | None = None
    """Exit stack that closes the environment."""
    provider: Provider | None = None
    """The runtime, for a verifier with its own environment."""
    phase: Phase = "provision"
    limit_seconds: float = math.inf
    deadline: float | None = None
    """Deadline of the run, on the event loop's clock."""
    agent_began: float | None = None
    """Start of the agent's part, on the same clock; None before it."""
    grading_began: float | None = None
    agent: Agent | None = None
    bindings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By capability: parameters of its connection for this task, where the template gives any."""
    budget: Budget = field(default_factory=Budget)
    reported: int = 0
    """Number of recorded steps."""
    attached: dict[str, RunTool] = field(default_factory=dict)
    """Tools of the agent's side, by name."""
    clients: OpenClients | None = None
    tool_timeout: float | None = None
    """Upper bound of each tool call of the run and of its subagents, in seconds."""
    calls: list[PendingCall] = field(default_factory=list)
    """Tool calls without a result, in the order of their starts."""
    snapshots: Snapshots | None = None
    """Snapshots of the run; None: none are kept."""
    judged: bool = False
    """True while a judge of its group has yet to grade it: its end is recorded then."""
    repetition: Run | None = None
    """The attempt after this one, which infrastructure broke."""
    cancels: Callable[[], bool] | None = None
    """Returns True while the scheduler cancels its runs; any other cancellation is foreign code's."""


@dataclass(eq=False, repr=False)
class Run(RunRecord):
    """An attempt at a task: agents call its tools, and the environment grades it."""

    training_progress: float | None = None
    """Completed share of the training run, 0 to 1, for graders; None outside training."""
    recorder: Recorder = field(default_factory=NullRecorder)
    caller: Run | None = None
    """The calling run, for a subagent's run."""
    called_as: tuple[str, int] | None = None
    """Name of the subagent tool, and number of its caller's earlier calls of that tool."""
    children: list[Run] = field(default_factory=list)
    """Its subagents' runs, in order of calls; failed, repeated runs come last."""
    broken_attempts: int = 0
    """Attempts before this one that infrastructure broke."""
    live: LiveRun = field(default_factory=LiveRun)

    def __post_init__(self) -> None:
        """Copy the task: an agent may change it, and other attempts play it, too."""
        self.planned_task = self.task
        self.task = self.task.copied()

    def __repr__(self) -> str:
        from hud.eval.results.notebook import run_text

        return run_text(self)

    def _repr_html_(self) -> str:
        from hud.eval.results.notebook import run_html

        return run_html(self)

    @property
    def agent_state(self) -> Mapping[str, Any] | None:
        """State of the agent after the turn from which the run goes on; None: it begins."""
        return None if self.live.snapshots is None else self.live.snapshots.agent_state

    async def turn_ended(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """Take a snapshot of the run after a turn, where its environment declares snapshots."""
        if self.live.snapshots is not None:
            await self.live.snapshots.take(self, state)

    @property
    def depth(self) -> int:
        """Nesting depth: 0 for a top-level run."""
        return 0 if self.caller is None else self.caller.depth + 1

    @property
    def bindings(self) -> dict[str, dict[str, Any]]:
        """By capability: parameters of its connection for this task, where the template gives any."""
        return self.live.bindings

    @property
    def budget(self) -> Budget:
        """Budget of steps and tokens of the run and its subagents."""
        return self.live.budget

    @property
    def cost_usd(self) -> float | None:
        """Cost of the model calls of the run and its subagents with known prices; None without any."""
        costs = [self.trace.usage.cost_usd, *(child.cost_usd for child in self.children)]
        measured = [cost for cost in costs if cost is not None]
        return sum(measured) if measured else None

    def record(self, step: Step) -> Step:
        """Append a finished step to the trace and record it; raises `AgentFault` for other values."""
        check_step(step)
        if self.live.phase == "tool":
            self.live.phase = "agent"  # A tool call was abandoned, and the agent continued.
        self.trace.record(step)
        self.report(checked=step)
        return step

    def report(self, checked: Step | None = None) -> None:
        """Record every unrecorded step (an agent may append to the trace)."""
        if self.trace.trace_id is None:
            return  # It represents a remote caller, which records its own run.
        steps = self.trace.steps
        while self.live.reported < len(steps):
            step = steps[self.live.reported]
            self.live.reported += 1
            if step is not checked:
                check_step(step)
            self.recorder.step_recorded(self.trace_id, step)

    @property
    def capabilities(self) -> list[Capability]:
        return [] if self.live.connection is None else self.live.connection.capabilities

    async def open(self, reference: str) -> CapabilityClient:
        """Connect to the capability of that name or protocol (`ssh` or `ssh/2`), once; it is closed with the run.

        Raises `NotFoundError` if the environment has none.
        """
        assert self.live.connection is not None, "the run has no environment (yet, or any more)"
        if self.live.clients is None:
            self.live.clients = OpenClients(self.live.connection)
        return await self.live.clients.open(reference)

    def attach(self, tool: RunTool) -> None:
        """Add a tool of the agent's side to `tools`; an environment's tool of that name takes precedence."""
        name = tool.spec.name
        if all(name != attached.name for attached in self.tools):
            self.live.attached[name] = tool
            self.tools = [*self.tools, tool.spec]

    async def call_tool(self, call: ToolCall, *, timeout: float | None = None) -> ToolResult:
        """Call a tool and record the step; a tool's own failure is an error result.

        Raises `AgentFault` for arguments that cannot be transmitted (`hud.trace.limits`).
        """
        assert self.live.connection is not None, "the run has no environment (yet, or any more)"
        started = now()
        self.live.phase = "agent"
        check_arguments(call.name, call.arguments)
        if any(tool.delegated and tool.name == call.name for tool in self.tools):
            from hud.eval.subagents import call_subagent  # Imports the modules that play runs.

            return await call_subagent(self, call)
        limits = [limit for limit in (timeout, self.live.tool_timeout) if limit is not None]
        pending = PendingCall(call.name, monotonic())
        self.live.calls.append(pending)
        try:
            outcome = await self._called(self.live.connection, call, min(limits, default=None))
        except BaseException:
            # Failure kind of exceptions and time-outs: an attached tool's execution counts as the agent's.
            self.live.phase = "agent" if call.name in self.live.attached else "tool"
            raise
        finally:
            self.live.calls.remove(pending)
        step = ToolStep(call=call, result=outcome.result, started_at=started)
        step.extra.update(outcome.observed)
        if "tools" in outcome.observed:
            self._change_tools(outcome.observed["tools"])
        self.record(step)
        return outcome.result

    def _change_tools(self, listed: list[dict[str, Any]]) -> None:
        """Update to the environment's current tools; attached ones stay."""
        own = [ToolSpec.model_validate(spec) for spec in listed]
        if self.depth >= DEEPEST:
            own = [spec for spec in own if not spec.delegated]
        for spec in own:
            self.live.attached.pop(spec.name, None)
        self.tools = [*own, *(spec for spec in self.tools if spec.name in self.live.attached)]

    async def _called(
        self, connection: Connection, call: ToolCall, timeout: float | None
    ) -> ToolOutcome:
        tool = self.live.attached.get(call.name)
        if tool is None:
            return await connection.call_tool(call.name, call.arguments, timeout=timeout)
        from hud.environment.connection import ToolOutcome

        try:
            result = await tool.call(copied(call.arguments), timeout)
        except BaseException as error:
            if isinstance(error, Exception) or not is_failure(error):
                raise
            raise AgentFault(f"Tool {call.name!r} raised {located(error)}.") from error
        return ToolOutcome(result, observed=await connection.observe())

    async def disconnect(self) -> None:
        clients, self.live.clients = self.live.clients, None
        self.live.attached.clear()
        if clients is not None:
            await clients.close()

    def fail(self, kind: FailureKind, problem: str) -> None:
        """End the run with a failure of `kind`; only an agent's failure counts, as reward 0."""
        self.failure_kind = kind
        self.error = problem
        self.trace.status = "error"
        self.grade = Grade.agent_failed() if kind == "agent" else Grade.ungraded()
        halves: dict[str, Literal["setup", "evaluate"]] = {"setup": "setup", "grade": "evaluate"}
        half = halves.get(self.live.phase)
        if half is None:
            self.record(Step(source="system", error=problem))
        else:
            call = TaskCall(phase=half, name=self.task.id, arguments=self.task.args)
            self.record(Step(source="task", task_call=call, error=problem))
        self.live.phase = "over"

    def successor(self) -> Run:
        """Return the run that repeats this one, with the id recorded in its trace."""
        again = Run(
            task=self.planned_task,
            trace=Trace(trace_id=self.trace.extra["retried_as"]),
            job_id=self.job_id,
            group_id=self.group_id,
            attempt=self.attempt,
            recorder=self.recorder,
            caller=self.caller,
            called_as=self.called_as,
            broken_attempts=self.broken_attempts + 1,
        )
        again.budget.within = self.budget.within
        again.live.tool_timeout, again.live.cancels = self.live.tool_timeout, self.live.cancels
        again.live.judged = self.live.judged
        if self.live.snapshots is not None:
            again.live.snapshots = Snapshots(self.live.snapshots.store)
        self.live.repetition = again
        for name in ("parent_trace_id", "subagent"):
            if name in self.trace.extra:
                again.trace.extra[name] = self.trace.extra[name]
        if self.caller is not None:
            self.caller.children.append(again)
        return again

    def summary(self) -> RunSummary:
        usage = self.trace.usage
        return RunSummary(
            slug=self.slug,
            reward=self.reward,
            group_id=self.group_id,
            attempt=self.attempt,
            failure_kind=self.failure_kind,
            stop_reason=self.trace.stop_reason,
            model=self.model,
            seconds=self.seconds,
            turns=usage.llm_call_count,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cost_usd=self.cost_usd,
            tool_calls=tool_counts(self.trace.steps),
        )

    async def play(self, agent: Player) -> None:
        """Let `agent` play and the environment grade; failures are stored in `error`, not raised."""
        from hud.agents.agent_forms import as_agent
        from hud.eval.episode import play  # Imports this module.

        await play(self, as_agent(agent))

    async def submit(self, answer: str) -> None:
        """Set the answer, for code that plays a run without an agent."""
        self.trace.content = answer
