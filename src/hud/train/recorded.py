"""Recorded runs as examples: what was said, which tools were offered, and what it was worth.

From runs of this process, or from a job of the platform. Knows traces and conversations; knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.agents.conversation import call_message, opening_messages, tool_message
from hud.client import Client
from hud.trace import (
    AgentStep,
    ChatMessage,
    Step,
    ToolSpec,
    ToolStep,
    Trace,
    parse_trace,
)

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.eval.taskset import Taskset

_PAGE = 500


@dataclass(frozen=True)
class Example:
    """A recorded run to learn from."""

    trace: Trace
    tools: list[ToolSpec]
    reward: float | None


def conversation_of(trace: Trace) -> list[ChatMessage]:
    """Return what was said in a run as chat messages, the assistant's turns and tool results among them."""
    messages: list[ChatMessage] = []
    for step in trace.steps:
        if isinstance(step, AgentStep):
            said: ChatMessage = {"role": "assistant", "content": step.content}
            if step.reasoning:
                said["reasoning_content"] = step.reasoning
            if step.tool_calls:
                said["tool_calls"] = [call_message(call) for call in step.tool_calls]
            messages.append(said)
        elif isinstance(step, ToolStep):
            if step.call is not None and step.result is not None:
                messages.append(tool_message(step.call, step.result))
        elif type(step) is Step and step.source == "user":
            messages += opening_messages(step.messages, None)
    # After its last word an assistant is asked nothing more.
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def examples_of(runs: Sequence[Run]) -> list[Example]:
    """Return runs of this process as examples."""
    return [Example(run.trace, list(run.tools), run.reward) for run in runs]


async def recorded_examples(
    client: Client, job: str, tasks: Taskset | None = None
) -> list[Example]:
    """Load a job's runs from the platform, and their tools from the environments of `tasks`."""
    tools = await _tools_of(tasks)
    examples: list[Example] = []
    while True:
        page = await client.get(
            f"/v2/jobs/{job}/traces", params={"limit": _PAGE, "offset": len(examples)}
        )
        for row in page["items"]:
            full = await client.get(f"/v2/trace/{row['trace_id']}/full")
            trace = parse_trace(full["trace"])
            env = ((full["run"].get("task") or {}).get("env")) or ""
            examples.append(Example(trace, tools.get(env, []), full["run"]["reward"]))
        if not page["items"] or len(examples) >= page["total"]:
            return examples


async def _tools_of(tasks: Taskset | None) -> dict[str, list[ToolSpec]]:
    """Return the tools of each environment that the tasks live in."""
    tools: dict[str, list[ToolSpec]] = {}
    for task in tasks or ():
        if task.env not in tools and task.environment is not None:
            async with task.environment.run() as world:
                tools[task.env] = await world.list_tools()
    return tools
