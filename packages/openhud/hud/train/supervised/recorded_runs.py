"""Recorded runs as examples: conversation, tools and reward.

From runs of this process, or from a job of the platform. Works on traces and conversations; independent of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.agents.chat_messages import opening_messages, tool_message
from hud.client import Client
from hud.environment.templates.task_identity import TaskIdentity
from hud.eval.results.failures import FailedRun
from hud.trace import (
    AgentStep,
    ChatMessage,
    Step,
    ToolSpec,
    ToolStep,
    Trace,
    parse_trace,
)
from hud.train.monitoring.progress import Reporter

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.eval.tasksets.taskset import Taskset

_PAGE = 500


@dataclass(frozen=True)
class Example:
    """A recorded run as a training example."""

    trace: Trace
    tools: list[ToolSpec]
    reward: float | None
    task: TaskIdentity | None
    """Its task; None: its task is not on record."""
    failed: FailedRun | None = None
    """Failure kind of a failed run."""
    imported: bool = False
    """True for a run of another system: its conversation is learned from without a reward, too."""
    may_train: bool = True
    """False: excluded by the policy of its source."""


def conversation_of(trace: Trace) -> list[ChatMessage]:
    """Return a run as chat messages: the prompt, the assistant's turns, tool results and the final answer.

    Calls and answers without a recorded turn become assistant turns, too: a script that plays a whole run records no
    turns.
    """
    messages: list[ChatMessage] = []
    call_ids: set[str] = set()
    for step in trace.steps:
        if isinstance(step, AgentStep):
            call_ids |= {call.id for call in step.tool_calls}
            message: ChatMessage = {"role": "assistant", "content": step.content}
            if step.reasoning:
                message["reasoning_content"] = step.reasoning
            if step.tool_calls:
                message["tool_calls"] = [call.message() for call in step.tool_calls]
            messages.append(message)
        elif isinstance(step, ToolStep):
            if step.call is not None and step.result is not None:
                if step.call.id not in call_ids:
                    call = step.call.message()
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                messages.append(tool_message(step.call, step.result))
        elif type(step) is Step and step.source == "user":
            messages += opening_messages(step.messages, None)
    turns = [step.content for step in trace.steps if isinstance(step, AgentStep)]
    if trace.content and trace.content not in turns:
        messages.append({"role": "assistant", "content": trace.content})
    # Messages after the last assistant turn are omitted.
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def examples_of(runs: Sequence[Run]) -> list[Example]:
    """Return runs of this process as examples."""
    return [
        Example(
            run.trace,
            list(run.tools),
            run.reward,
            run.task.identity,
            _failed(run.failure_kind, run.error, run.slug, run.trace_id),
        )
        for run in runs
    ]


async def recorded_examples(
    client: Client,
    job: str,
    tasks: Taskset | None = None,
    reporter: Reporter | None = None,
) -> list[Example]:
    """Load a job's runs from the platform, and their tools from the environments of `tasks`."""
    reporter = reporter or Reporter()
    tools = await _tools_of(tasks)
    examples: list[Example] = []
    while True:
        page = await client.get(
            f"/v2/jobs/{job}/traces", params={"limit": _PAGE, "offset": len(examples)}
        )
        if not examples:
            reporter.phase("examples", 0, page["total"])
        for row in page["items"]:
            full = await client.get(f"/v2/trace/{row['trace_id']}/full")
            run, trace = full["run"], parse_trace(full["trace"])
            task = run.get("task") or {}
            identity = TaskIdentity.recorded(task) if task else None
            failed = _failed(run["failure_kind"], run["error"], run["slug"] or "", run["trace_id"])
            examples.append(
                Example(
                    trace,
                    tools.get(task.get("env", ""), []),
                    run["reward"],
                    identity,
                    failed,
                    run["source"] is not None,
                    run["may_train"] is not False,
                )
            )
            reporter.run_ended(run["reward"])
        if not page["items"] or len(examples) >= page["total"]:
            return examples


def _failed(kind: str | None, error: str | None, slug: str, trace_id: str) -> FailedRun | None:
    return None if kind is None else FailedRun(kind, error, slug, trace_id)


async def _tools_of(tasks: Taskset | None) -> dict[str, list[ToolSpec]]:
    """Return the tools of each of the tasks' environments."""
    tools: dict[str, list[ToolSpec]] = {}
    for task in tasks or ():
        if task.env not in tools and task.environment is not None:
            async with task.environment.run() as world:
                tools[task.env] = await world.list_tools()
    return tools
