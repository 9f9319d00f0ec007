"""Text of a taskset, as corpus for a small model's tokenizer.

Prompts, names and descriptions of tools, results of tools without arguments, and, for a given job, the conversations of
its runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hud.client import Client
from hud.errors import UsageError
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.exchange.supervision import conversation_of
from hud.trace import ChatMessage, ToolSpec, text_of
from hud.train.supervised.recorded_runs import recorded_examples, runs_of_job

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.environment.connection import Connection
    from hud.environment.templates.task import Provider
    from hud.eval.tasksets.taskset import Taskset

TOOL_SECONDS = 5.0
"""Time-out of a tool call for its text."""
MOST_TASKS = 400
"""Maximum number of tasks; more improve a tokenizer little."""


async def texts_of(tasks: Taskset, *, runtime: Provider | None = None) -> list[str]:
    """Return the text of every prompt, of the tools, and of the results of tools without arguments.

    Raises `UsageError` without text.
    """
    texts: list[str] = []
    provider = as_runtime(runtime)
    hanging: set[str] = set()
    for task in list(tasks)[:MOST_TASKS]:
        async with provider(task) as world:
            texts += await _texts_of_task(world, task, hanging)
    if not texts:
        raise UsageError(f"Taskset {tasks.name!r} holds no text to learn a tokenizer from.")
    return texts


async def texts_of_job(client: Client, job: str) -> list[str]:
    """Return the text of a recorded job's conversations. Raises `UsageError` without text."""
    examples = await recorded_examples(client, await runs_of_job(client, job))
    texts = [
        text for example in examples for text in texts_of_messages(conversation_of(example.trace))
    ]
    if not texts:
        raise UsageError(f"In the runs of job {job!r} nothing was said.")
    return texts


def texts_of_messages(messages: Iterable[ChatMessage]) -> list[str]:
    """Return the text of chat messages, with tool calls in the format of a tiny model's template."""
    texts: list[str] = []
    for message in messages:
        if isinstance(message.get("content"), str):
            texts.append(message["content"])
        texts += [_call_text(call["function"]) for call in message.get("tool_calls") or []]
    return texts


async def _texts_of_task(world: Connection, task: Task, hanging: set[str]) -> list[str]:
    """Return the texts of a task; tools without a result in time are added to `hanging`, and not called again."""
    tools = await world.list_tools()
    frame = await world.start(task.id, task.args)
    prompt = frame.prompt
    texts = (
        [prompt] if isinstance(prompt, str) else [text_of(message.content) for message in prompt]
    )
    for tool in tools:
        texts.append(_tool_text(tool))
        if not tool.parameters.get("required") and tool.name not in hanging:
            result = (await world.call_tool(tool.name, {}, timeout=TOOL_SECONDS)).result
            if result.timed_out:
                hanging.add(tool.name)
            else:
                texts.append(result.text)
    await world.cancel()
    return texts


def _tool_text(tool: ToolSpec) -> str:
    names = tool.parameters.get("properties", {})
    call = _call_text({"name": tool.name, "arguments": dict.fromkeys(names, "")})
    return f"{tool.name}({', '.join(names)}) {tool.description} {call}"


def _call_text(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return f'<tool_call>{{"name": "{function["name"]}", "arguments": {shown}}}</tool_call>'
