"""Prompts of tasks, for exports that hold them: each task is started once in this process, and not graded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.trace import Message

if TYPE_CHECKING:
    from hud.environment import Environment, Task


async def prompt_messages(task: Task) -> list[Message]:
    """Start a task in its bound environment, and return its prompt. Raises `UsageError` for an unbound task."""
    async with environment_of(task).run() as run:
        frame = await run.start(task.id, task.args)
        await run.cancel()
    return [Message(content=frame.prompt)] if isinstance(frame.prompt, str) else frame.prompt


def environment_of(task: Task) -> Environment:
    """Return the environment of a task; raises `UsageError` for an unbound task."""
    if task.environment is None:
        raise UsageError(
            f"Task {task.slug!r} names environment {task.env!r}, which is not on this machine."
        )
    return task.environment


def beyond_answers(environment: Environment) -> str | None:
    """Return, as a reason, what an environment has besides prompts and graders; None if there is nothing."""
    has = {
        "tools": sorted(environment.tools),
        "parts": sorted(environment.parts),
        "capabilities": sorted(capability.name for capability in environment.capabilities),
    }
    named = [f"{kind} ({', '.join(names)})" for kind, names in has.items() if names]
    return f"its environment has {' and '.join(named)}" if named else None
