"""`AgentTool`: a scenario with its own environment, tools and reward, as a tool of another environment.

    investigate = env.add_tool(AgentTool(detective.investigate, model="detective"))

The environment defines the subagent's task, model and limits. The caller's process plays it (`hud.eval.subagents`); see
docs/decisions/0006-subagents-play-beside-their-caller.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from hud.environment.current_run import runs_in_scope
from hud.environment.templates.task import Task
from hud.environment.templates.template import Template
from hud.environment.tools.arguments import GRADING, HINT, Arguments
from hud.environment.tools.results import text_block
from hud.environment.tools.tool import parse_arguments
from hud.errors import EnvironmentFault, UsageError
from hud.trace import ToolResult, ToolSpec

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun


class Delegation(BaseModel):
    """A call of a subagent: its task and limits."""

    model_config = ConfigDict(frozen=True)

    task: Task
    """The task, with its hidden arguments, which the caller's model never receives."""
    model: str | None = None
    """Slug of the subagent's model; None: its caller's."""
    seconds: float | None = None
    """Time limit, in seconds, further limited by its caller's remaining time."""


class AgentTool:
    """A template, or a task of one, that an agent with its own model plays at each call of the tool.

    The tool's arguments are the template's, except those for graders: arguments that default to None, or are marked
    `GradingArg`, are hidden. Their values come from `supply(...)`, else from the calling environment's task (the argument
    of the same name, or the one in `from_task`), else from their defaults.
    """

    timeout: float | None = None

    def __init__(
        self,
        scenario: Template | Task,
        *,
        model: str | None = None,
        name: str | None = None,
        description: str | None = None,
        from_task: Mapping[str, str] | None = None,
        visible: Iterable[str] = (),
        max_steps: int | None = None,
        max_tokens: int | None = None,
        timeout: float | None = None,
        agent_config: Mapping[str, Any] | None = None,
    ) -> None:
        """`visible` lists arguments to show that would otherwise be hidden.

        A call is limited to `max_steps` turns, `max_tokens` sampled tokens, including its own subagents', and `timeout`
        seconds. `agent_config` holds other settings of the agent, such as `system_prompt`.
        """
        self.task, self.template = _scenario(scenario)
        self.name = name or self.template.id
        self.model = model
        self.seconds = timeout
        self.settings = _settings(max_steps, max_tokens, agent_config)
        what = f"Subagent tool {self.name!r}"
        if timeout is not None and not timeout > 0:
            raise UsageError(f"{what}: timeout must be positive, not {timeout:g}.")
        self.hidden = _hidden(self.template, self.task.args, set(visible), what)
        self.from_task = dict(from_task or {})
        if unknown := sorted(self.from_task.keys() - self.hidden):
            raise UsageError(
                f"{what}: from_task names {unknown[0]!r}, which is no hidden argument of template "
                f"{self.template.id!r} (hidden are: {', '.join(sorted(self.hidden)) or 'none'})."
            )
        self.arguments = Arguments(
            self.template.function, self.name, leave_out={*self.hidden, *self.task.args}
        )
        self.spec = ToolSpec(
            name=self.name,
            description=description or self.template.description,
            parameters=self.arguments.schema,
            delegated=True,
        )

    def supply(self, **values: Any) -> None:
        """Set hidden arguments for the current run. Raises `UsageError` for others."""
        if unknown := sorted(values.keys() - self.hidden):
            raise UsageError(
                f"Subagent tool {self.name!r} has no hidden argument {unknown[0]!r} "
                f"(hidden are: {', '.join(sorted(self.hidden)) or 'none'})."
            )
        self._calling_run("supply").supplied.setdefault(self.name, {}).update(values)

    def delegation(self, arguments: dict[str, Any] | str, run: EnvironmentRun) -> Delegation:
        """Return the delegation of a call from `run`.

        Raises `UsageError` for the caller's invalid arguments, and `EnvironmentFault` for missing or invalid hidden ones.
        """
        parsed = parse_arguments(arguments, self.name)
        values = self.arguments.validate_call(parsed)
        # Defaults are left to the template, so that equal calls are equal tasks.
        chosen = {name: values[name] for name in parsed}
        task_arguments = {**self.task.args, **chosen, **self._hidden_values(run)}
        try:
            minted = self.template(**task_arguments)
        except UsageError as error:
            raise EnvironmentFault(
                f"Subagent tool {self.name!r} cannot be called in this task: {error} Hidden arguments come from "
                "supply(...), or from arguments of the calling task."
            ) from error
        task = minted.model_copy(
            update={
                "agent_config": {**(self.task.agent_config or {}), **self.settings} or None,
                "columns": self.task.columns,
                "verifier": self.task.verifier,
            }
        )
        return Delegation(task=task, model=self.model, seconds=self.seconds)

    async def call(
        self, arguments: dict[str, Any] | str, timeout: float | None = None
    ) -> ToolResult:
        """Play the subagent in the environment's process, for MCP clients, which cannot."""
        from hud.environment import play_here

        run = self._calling_run("call")
        try:
            result: ToolResult = await play_here(run, self.name, arguments, timeout)
            return result
        except UsageError as error:
            return ToolResult(content=[text_block(str(error))], is_error=True)

    def _hidden_values(self, run: EnvironmentRun) -> dict[str, Any]:
        supplied = run.supplied.get(self.name, {})
        values: dict[str, Any] = {}
        for name in self.hidden:
            source = self.from_task.get(name, name)
            if name in supplied:
                values[name] = supplied[name]
            elif source in run.args:
                values[name] = run.args[source]
            elif name in self.from_task:
                raise EnvironmentFault(
                    f"Subagent tool {self.name!r} takes {name!r} from the calling task's argument {source!r}, "
                    "which this task does not have."
                )
        return values

    def _calling_run(self, wanted: str) -> EnvironmentRun:
        for run in runs_in_scope():
            if run.environment.tools.get(self.name) is self:
                return run
        raise UsageError(
            f"Subagent tool {self.name!r}: {wanted}(...) works inside the tools and templates of an environment "
            "that it was added to."
        )


def _scenario(scenario: Template | Task) -> tuple[Task, Template]:
    """Return the scenario's fixed arguments and its template."""
    if isinstance(scenario, Template):
        return Task(env=scenario.environment.name, id=scenario.id), scenario
    if not isinstance(scenario, Task):
        raise UsageError(f"AgentTool takes a template or a task, not {type(scenario).__name__}.")
    template = (
        None if scenario.environment is None else scenario.environment.templates.get(scenario.id)
    )
    if template is None:
        raise UsageError(
            f"AgentTool needs the environment of task {scenario.slug!r}: make the task with its template, as in "
            "AgentTool(template(...)), in the file that makes the calling environment."
        )
    return scenario, template


def _settings(
    max_steps: int | None, max_tokens: int | None, agent_config: Mapping[str, Any] | None
) -> dict[str, Any]:
    limits = {"max_steps": max_steps, "total_tokens": max_tokens}
    settings = {name: value for name, value in limits.items() if value is not None}
    return {**(agent_config or {}), **settings}


def _hidden(template: Template, fixed: Mapping[str, Any], visible: set[str], what: str) -> set[str]:
    """Return the hidden arguments."""
    parameters = inspect.signature(template.function).parameters
    if unknown := sorted(visible - parameters.keys()):
        raise UsageError(f"{what}: template {template.id!r} has no argument {unknown[0]!r}.")
    described = template.arguments.schema["properties"]
    return {
        name
        for name, parameter in parameters.items()
        if name in described
        and name not in fixed
        and name not in visible
        and (parameter.default is None or described[name].get(HINT) == GRADING)
    }
