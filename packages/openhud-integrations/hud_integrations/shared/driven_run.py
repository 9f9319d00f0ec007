"""`DrivenRun`: a run whose agent is another library's loop: started, used and graded by calls from synchronous code."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from hud.environment import Task
from hud.environment.templates.task import Provider
from hud.errors import UsageError
from hud.eval import Job, Run
from hud.eval.eval_context import evaluate
from hud.learning.failed_runs import failure_of
from hud.trace import AgentStep, ToolCall, ToolResult, new_id
from hud_integrations.shared.event_loop import wait_for


class DrivenRun:
    """One run at a time. Calls block, and work from any thread."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run in progress. Raises `UsageError` without one."""
        if self._run is None:
            raise UsageError("No run is in progress; start one first.")
        return self._run

    def start(self, task: Task, runtime: Provider, job: Job) -> Run:
        """Start a task, after what was in progress has ended; raises the errors of opening its environment."""
        return wait_for(self._start(task, runtime, job))

    async def _start(self, task: Task, runtime: Provider, job: Job) -> Run:
        await self._close()
        context = evaluate(task, runtime=runtime, job=job, group_id=new_id())
        self._run = await self._stack.enter_async_context(context)
        return self._run

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool of the environment; its failure is an error result."""
        call = ToolCall(id=new_id(), name=name, arguments=arguments)
        return wait_for(self.run.call_tool(call))

    def answer(self, text: str) -> Run:
        """Grade an answer and end the run; returns it."""
        run = self.run
        run.record(AgentStep(content=text, done=True))
        run.trace.content = text
        self.close()
        return run

    def close(self) -> None:
        """End the run in progress, if any: it is graded without an answer."""
        wait_for(self._close())

    async def _close(self) -> None:
        self._run = None
        await self._stack.aclose()


def measured_reward(run: Run) -> float | None:
    """Return the reward of a finished run; None where it was not measured."""
    failure = failure_of(run.reward, run.failure_kind, run.trace.stop_reason)
    return None if failure else run.reward
