"""`Episode`: an environment in TRL's terms. TRL's own loop samples, calls tools as methods, and hands over the answer."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from hud.errors import RolloutError, UsageError
from hud.eval import Run
from hud.eval.eval_context import evaluate
from hud.learning.failed_runs import failure_of
from hud.trace import AgentStep, ToolCall, ToolSpec, new_id
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.jobs import JobOnDemand
from hud_integrations.trl.registry import registered

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


class Records:
    """The job of a spec's episodes, and the groups in it: `group` consecutive resets to one task are one group."""

    def __init__(self, name: str, group: int) -> None:
        self.job = JobOnDemand(f"{name} (trl)", group=group, purpose="training")
        self._size = group
        self._resets: Counter[str] = Counter()
        self._groups: dict[str, str] = {}

    def group_of(self, key: str) -> str:
        """Return the group of the next run of a task."""
        if self._resets[key] % self._size == 0:
            self._groups[key] = new_id()
        self._resets[key] += 1
        return self._groups[key]


class Episode:
    """One environment, reset for each rollout. Subclasses have the environment's tools as methods.

    Every public method but `reset` is a tool for TRL, so that all others have a leading underscore; `hud_reward` calls
    `_grade`.
    """

    _records: ClassVar[Records]

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._run: Run | None = None

    def reset(self, hud_task: str, **columns: Any) -> str:
        """Start a run of a task and return its prompt, which TRL appends to the user message."""
        del columns
        return wait_for(self._start(hud_task))

    async def _start(self, key: str) -> str:
        await self._close()
        entry = registered(key)
        try:
            self._run = await self._stack.enter_async_context(
                evaluate(
                    entry.task,
                    runtime=entry.runtime,
                    job=await self._records.job.get(),
                    group_id=self._records.group_of(key),
                )
            )
        except RolloutError:
            # A failed run is on record; TRL needs a prompt all the same, and the reward will be None.
            return ""
        return self._run.prompt_text

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        return wait_for(self._called(name, arguments))

    async def _called(self, name: str, arguments: dict[str, Any]) -> str:
        if self._run is None:
            raise RuntimeError("The environment is not up.")
        arguments_sent = {key: value for key, value in arguments.items() if value is not None}
        result = await self._run.call_tool(
            ToolCall(id=new_id(), name=name, arguments=arguments_sent)
        )
        if result.is_error:
            raise RuntimeError(result.text)  # TRL shows its text to the model.
        return result.text

    def _grade(self, answer: str) -> float | None:
        """End the run with an answer, and return its reward; None where it was not measured."""
        return wait_for(self._graded(answer))

    async def _graded(self, answer: str) -> float | None:
        run = self._run
        if run is None:
            return None
        run.record(AgentStep(content=answer, done=True))
        run.trace.content = answer
        await self._close()
        failure = failure_of(run.reward, run.failure_kind, run.trace.stop_reason)
        return None if failure else run.reward

    async def _close(self) -> None:
        self._run = None
        await self._stack.aclose()


def episode_classes(
    name: str, environments: Mapping[str, str], group: int
) -> dict[str, type[Episode]]:
    """Return a class of episodes for each environment, by its name; `environments` has a task's key for each.

    Raises `UsageError` for a tool whose name is no Python name, or that of a method of `Episode`.
    """
    records = Records(name, group)
    classes: dict[str, type[Episode]] = {}
    for environment, key in environments.items():
        members: dict[str, Any] = {"_records": records}
        for spec in wait_for(_tools_of(key)):
            if (
                not spec.name.isidentifier()
                or spec.name.startswith("_")
                or hasattr(Episode, spec.name)
            ):
                raise UsageError(
                    f"TRL calls tools as methods, and environment {environment!r} has a tool {spec.name!r}; rename it, or "
                    "train with HudSpec.rollout_func."
                )
            members[spec.name] = tool_method(spec)
        classes[environment] = type(
            f"{environment.title().replace('-', '')}Episode", (Episode,), members
        )
    return classes


async def _tools_of(key: str) -> list[ToolSpec]:
    """Start a task to list the tools of its environment."""
    entry = registered(key)
    async with entry.runtime(entry.task) as connection:
        await connection.start(entry.task.id, entry.task.args)
        return await connection.list_tools()


def tool_method(spec: ToolSpec) -> Callable[..., str]:
    """Return a tool as a method with type hints and a Google docstring, from which TRL makes its schema again."""
    properties: dict[str, Any] = spec.parameters.get("properties", {})
    required = spec.parameters.get("required", [])
    # Parameters without a default come first in Python.
    names = sorted(properties, key=lambda name: name not in required)
    hints: dict[str, Any] = {}
    for name in names:
        hint = _TYPES.get(properties[name].get("type"), Any)
        hints[name] = hint if name in required else hint | None

    def method(self: Episode, *values: Any, **named: Any) -> str:
        return self._call(spec.name, dict(zip(names, values, strict=False)) | named)

    method.__name__ = method.__qualname__ = spec.name
    method.__annotations__ = hints | {"return": str}
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter("self"), *(_parameter(name, hints[name], name in required) for name in names)],
        return_annotation=str,
    )
    described = [
        f"    {name}: {schema.get('description') or schema.get('title') or name}"
        for name, schema in properties.items()
    ]
    arguments = "\n\nArgs:\n" + "\n".join(described) if described else ""
    method.__doc__ = f"{spec.description or spec.name}{arguments}"
    return method


def _parameter(
    name: str, hint: Any = inspect.Parameter.empty, required: bool = True
) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if required else None,
        annotation=hint,
    )
