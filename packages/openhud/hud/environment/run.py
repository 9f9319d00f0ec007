"""A run of an environment in this process: the direct implementation of `Connection`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hud.capabilities import Capability
from hud.environment.connection import TURN_REWARD, ToolOutcome
from hud.environment.current_run import State, entered
from hud.environment.part import OpenParts, RunTool
from hud.environment.processes.run_processes import RunProcesses
from hud.environment.run_snapshot import EnvironmentSnapshot, RunSnapshots
from hud.environment.templates.agent_tool import AgentTool, Delegation
from hud.environment.templates.answer import Played, parse_answer
from hud.environment.templates.prompts import StartFrame, start_frame
from hud.environment.templates.rewards import grade_frame
from hud.environment.templates.template import Template
from hud.environment.tools.results import as_json
from hud.errors import (
    AgentFault,
    EnvironmentFault,
    GraderFault,
    NotFoundError,
    RolloutError,
    UsageError,
    located,
)
from hud.foreign_code import is_failure
from hud.trace import ToolResult, ToolSpec, Trace
from hud.trace.limits import check_answer
from hud.trace.trace_copy import copied_trace

if TYPE_CHECKING:
    from hud.environment.environment import Environment


ENDED = "ended_before_grading"
"""Key of a grade's `info`: names of the processes that tools had left running."""
CALLS_END_SECONDS = 5.0
"""Time-out for cancelling running tool calls before grading, in seconds."""


class EnvironmentRun:
    """A run's state, its started template, and its tools.

    A subagent's run is nested `within` its caller's: its tools also access the caller's state, and it ends with the
    caller's at the latest.
    """

    address = "local"

    def __init__(self, environment: Environment, within: EnvironmentRun | None = None) -> None:
        self.environment = environment
        self.within = within
        self.name = environment.name
        self.version = environment.version
        self.reward_range = environment.reward_range
        self.state = State()
        self.parts = OpenParts()
        self._listed: list[ToolSpec] | None = None
        self.args: dict[str, Any] = {}
        """Arguments of the started task."""
        self.supplied: dict[str, dict[str, Any]] = {}
        """Hidden arguments of subagents, by their tools."""
        self._nested: list[EnvironmentRun] = []
        self.added: list[Capability] = []
        """Capabilities added by hooks of this run."""
        self.training_progress: float | None = None
        """Completed share of the training run, 0 to 1; None outside training."""
        self.turn_reward: float | None = None
        """Reward recorded for the agent's turn since the last observation; None: none was."""
        self.processes: RunProcesses | None = None
        """Processes of its tools, which end before its grade; None where others' could be among them."""
        self._open = False
        self._grading = False
        self._calls: set[asyncio.Task[Any]] = set()
        """asyncio tasks of running tool calls."""
        self._template: Template | None = None
        self._episode: AsyncGenerator[Any, Any] | None = None
        self._snapshots = RunSnapshots()

    @property
    def nesting(self) -> list[EnvironmentRun]:
        """The runs that this one is nested in, outermost first, and itself."""
        return [self] if self.within is None else [*self.within.nesting, self]

    @property
    def episode(self) -> AsyncGenerator[Any, Any] | None:
        """The template's generator, suspended at its first yield; None if no task is started."""
        return self._episode

    async def open(self) -> EnvironmentRun:
        """Open the parts, and run the initialize hooks. Raises `EnvironmentFault` if a hook raises."""
        self._open = True
        if self.environment.parts:
            await self.parts.open(self.environment.parts.values(), self)
        for hook in self.environment.initialize_hooks:
            with entered(self):
                try:
                    await _called(hook)
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    raise EnvironmentFault(
                        f"Environment {self.name!r}: its initialize hook {hook.__name__!r} raised {located(error)}."
                    ) from error
        return self

    async def list_tools(self) -> list[ToolSpec]:
        if not self.parts:
            return self.environment.tool_specs
        own = self.environment.tools
        added = [tool.spec for name, tool in self.parts.tools().items() if name not in own]
        self._listed = [*self.environment.tool_specs, *added]
        return self._listed

    @property
    def capabilities(self) -> list[Capability]:
        return [*self.environment.capabilities, *self.added, *self.parts.capabilities()]

    async def reach(self, capability: Capability) -> Capability:
        return capability  # Its address is local already.

    async def observe(self) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        if self.parts:
            seen = await self.parts.observe()
            self.parts.check()
            before = self._listed
            if before is not None and await self.list_tools() != before:
                seen["tools"] = [spec.model_dump() for spec in await self.list_tools()]
        state = await self._state()
        if state is not None:
            seen["state"] = state
        if self.turn_reward is not None:
            seen[TURN_REWARD], self.turn_reward = self.turn_reward, None
        return seen

    async def snapshot(self) -> EnvironmentSnapshot:
        return await self._snapshots.take(self)

    async def restore(self, parts: Mapping[str, bytes]) -> str | None:
        return await self._snapshots.restore(self, parts)

    async def list_tasks(self) -> list[dict[str, Any]]:
        return [template.row() for template in self.environment.templates.values()]

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, timeout: float | None = None
    ) -> ToolOutcome:
        if self._grading:
            refused = f"{name}: the answer is being graded."
            return ToolOutcome(ToolResult.of_text(refused, is_error=True))
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await self._call_tool(name, arguments, timeout)
        finally:
            self._calls.discard(task)

    async def _call_tool(
        self, name: str, arguments: dict[str, Any] | str, timeout: float | None
    ) -> ToolOutcome:
        tool: RunTool | None = self.environment.tools.get(name)
        added = self.parts.tools() if self.parts else {}
        with entered(self):
            if tool is None:
                tool = added.get(name)
            if tool is None:
                names = ", ".join([*self.environment.tools, *added]) or "none"
                result = ToolResult.of_text(
                    f"There is no tool {name!r} (there are: {names}).", is_error=True
                )
            else:
                result = await _result_of(tool, arguments, timeout)
            return ToolOutcome(result, await self.observe())

    async def delegate(self, name: str, arguments: dict[str, Any] | str) -> Delegation | ToolResult:
        tool = self._subagent(name)
        with entered(self):
            try:
                return tool.delegation(arguments, self)
            except UsageError as error:
                return ToolResult.of_text(str(error), is_error=True)

    async def nested(self, name: str) -> EnvironmentRun:
        run = EnvironmentRun(self._subagent(name).template.environment, self)
        self._nested.append(run)
        return await run.__aenter__()

    def _subagent(self, name: str) -> AgentTool:
        tool = self.environment.tools.get(name)
        if not isinstance(tool, AgentTool):
            raise NotFoundError(f"Environment {self.name!r} has no subagent {name!r}.")
        return tool

    async def _state(self) -> Any:
        """Return the result of the environment's observe hook; None without one."""
        hook = self.environment.observe_hook
        if hook is None:
            return None
        with entered(self):
            try:
                return as_json(await _called(hook))
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise EnvironmentFault(
                    f"Environment {self.name!r}: its observe hook {hook.__name__!r} raised {located(error)}."
                ) from error

    async def start(
        self, task_id: str, args: dict[str, Any], *, training_progress: float | None = None
    ) -> StartFrame:
        """Start a task; return its prompt. Raises `NotFoundError` without the template, `EnvironmentFault` if it fails."""
        self.training_progress = training_progress
        template = self.environment.templates.get(task_id)
        if template is None:
            names = ", ".join(self.environment.templates) or "none"
            raise NotFoundError(
                f"Environment {self.name!r} has no template {task_id!r} (there are: {names})."
            )
        values = template.arguments.validate(args)
        await self.cancel()
        await self._end_processes()
        await self.parts.begin_task()
        self.args, self.supplied, self.turn_reward = values, {}, None
        episode = template.function(**values)
        with entered(self):
            try:
                value = await anext(episode)
            except StopAsyncIteration:
                raise EnvironmentFault(
                    f"Template {task_id!r} ended without a yield; it must yield twice: the prompt, then the reward."
                ) from None
            except RolloutError:
                raise
            except BaseException as error:
                if not is_failure(error):
                    raise
                raise EnvironmentFault(
                    f"Template {task_id!r} raised {located(error)} before its prompt."
                ) from error
        self._template, self._episode = template, episode
        if self.processes is not None:
            self.processes.begin()
        await self._snapshots.begin(self)
        frame = start_frame(value, task_id)
        if self.environment.observe_hook is None:
            return frame
        return replace(frame, state=await self._state())

    async def grade(self, answer: str, trace: Played) -> dict[str, Any]:
        """End the task; return its grade frame. Raises `UsageError` without a task in progress.

        Foreign code gets a copy of `trace`, made when it is first read.
        """
        if isinstance(trace, Trace):
            trace = partial(copied_trace, trace)
        if self._template is None or self._episode is None:
            raise UsageError("no task in progress")
        template, episode = self._template, self._episode
        self._template = self._episode = None
        self.parts.check()
        self._grading = True
        try:
            if self._calls:
                await self._end_calls()
            await self.parts.begin_grading()
            ended = await self._end_processes()
            try:
                frame = await self._graded(template, episode, answer, trace)
            except GraderFault as fault:
                raise _explained(fault, ended) from fault
            if ended:
                info = frame.get("info")
                frame["info"] = {**(info if isinstance(info, dict) else {}), ENDED: ended}
            if self.turn_reward is not None:
                # Recorded by calls that no step of the agent stands for.
                frame[TURN_REWARD], self.turn_reward = self.turn_reward, None
            return frame
        finally:
            self._grading = False

    async def _end_calls(self) -> None:
        """Cancel the agent's running tool calls, with a time-out for calls that do not end."""
        calls = self._calls - {asyncio.current_task()}
        for task in calls:
            task.cancel()
        if calls:
            await asyncio.wait(calls, timeout=CALLS_END_SECONDS)

    async def _end_processes(self) -> list[str]:
        """End what tools left running, unless the environment keeps it; returns the names of the processes."""
        if self.processes is None or self.environment.keeps_running:
            return []
        return await self.processes.end()

    async def _graded(
        self,
        template: Template,
        episode: AsyncGenerator[Any, Any],
        answer: str,
        trace: Played,
    ) -> dict[str, Any]:
        try:
            check_answer(answer, limit=None)
        except AgentFault as fault:
            # OpenHUD's clients validate the answer; others may send anything.
            with entered(self):
                await _closed(episode, template.id, GraderFault)
            low, high = self.reward_range
            return {"score": min(max(0.0, low), high), "done": True, "content": str(fault)}
        parsed = parse_answer(answer, trace, template.returns)
        with entered(self):
            try:
                value = await _second_yield(episode, parsed, template.id)
                frame = grade_frame(value, self.reward_range, template.id)
                await _ends(episode, template.id)
                return frame
            finally:
                await _closed(episode, template.id, GraderFault)

    async def cancel(self) -> None:
        template, self._template = self._template, None
        episode, self._episode = self._episode, None
        if template is not None and episode is not None:
            with entered(self):
                await _closed(episode, template.id, EnvironmentFault)

    async def close(self) -> None:
        """End the run completely. Then raises `EnvironmentFault` if a hook, the template or a part failed."""
        if not self._open:
            return
        self._open = False
        if self.within is not None:
            self.within._nested.remove(self)
        failures = []
        for nested in list(self._nested):
            try:
                await nested.close()
            except EnvironmentFault as error:
                failures.append(f"a subagent's run was not closed: {error}")
        try:
            await self.cancel()
        except EnvironmentFault as error:
            failures.append(str(error).rstrip("."))
        for hook in self.environment.shutdown_hooks:
            with entered(self):
                try:
                    await _called(hook)
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    failures.append(f"its shutdown hook {hook.__name__!r} raised {located(error)}")
        try:
            await self.parts.close()
        except BaseException as error:
            if not is_failure(error):
                raise
            failures.append(f"one of its parts raised {located(error)} while it was brought down")
        if failures:
            raise EnvironmentFault(f"Environment {self.name!r}: {'; '.join(failures)}.")

    async def __aenter__(self) -> EnvironmentRun:
        try:
            return await self.open()
        except BaseException:
            await self._close_quietly()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _close_quietly(self) -> None:
        """Close after a failed start; errors of closing are suppressed in favour of the start's."""
        try:
            await self.close()
        except EnvironmentFault:
            return


async def _result_of(
    tool: RunTool, arguments: dict[str, Any] | str, timeout: float | None
) -> ToolResult:
    """Call a tool. Raises `EnvironmentFault` for `sys.exit()` and the like of a part's tool."""
    try:
        return await tool.call(arguments, timeout)
    except BaseException as error:
        if isinstance(error, Exception) or not is_failure(error):
            raise
        raise EnvironmentFault(f"Tool {tool.spec.name!r} raised {located(error)}.") from error


async def _second_yield(episode: AsyncGenerator[Any, Any], answer: str, task_id: str) -> Any:
    try:
        return await episode.asend(answer)
    except StopAsyncIteration:
        raise GraderFault(
            f"Template {task_id!r} ended after one yield; its second yield must be the reward."
        ) from None
    except RolloutError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise GraderFault(f"Template {task_id!r} raised {located(error)} while grading.") from error


def _explained(fault: GraderFault, ended: list[str]) -> GraderFault:
    """Return the fault of a grader, with the processes that it may have missed."""
    if not ended:
        return fault
    return GraderFault(
        f"{fault} Before it, processes that tools had started were ended: {', '.join(ended)}. If the grader needs "
        "them, declare Environment(keeps_running=True)."
    )


async def _ends(episode: AsyncGenerator[Any, Any], task_id: str) -> None:
    try:
        await anext(episode)
    except StopAsyncIteration:
        return
    except BaseException as error:
        if not is_failure(error):
            raise
        raise GraderFault(
            f"Template {task_id!r} raised {located(error)} after its reward."
        ) from error
    raise GraderFault(
        f"Template {task_id!r} yielded a third time; it must yield twice: the prompt, then the reward."
    )


async def _closed(
    episode: AsyncGenerator[Any, Any], task_id: str, fault: type[RolloutError]
) -> None:
    try:
        await episode.aclose()
    except BaseException as error:
        if not is_failure(error):
            raise
        raise fault(f"Template {task_id!r} raised {located(error)} while it was closed.") from error


async def _called(hook: Callable[[], Any]) -> Any:
    value = hook()
    return await value if inspect.isawaitable(value) else value
