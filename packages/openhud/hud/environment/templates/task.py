"""`Task`: a template's id and arguments as a row of plain data. Creating one runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator, model_validator

from hud.environment.templates.task_identity import TaskIdentity
from hud.errors import UsageError
from hud.trace.json_values import copied, plain_value

if TYPE_CHECKING:
    from hud.environment.connection import Connection
    from hud.environment.environment import Environment
    from hud.trace.recording.recorder import RecordedRun, Recorder

Player = Callable[..., Any] | str
"""A form of an agent: an `Agent`, its class, a function of `(run)` or of `(messages, tools, trace)`, or a model's slug."""
Provider = Callable[["Task"], AbstractAsyncContextManager["Connection"]]
"""A runtime: opens and closes a task's environment."""


class EvaluatedJob(Protocol):
    """Result of an evaluation; a `hud.Job`."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def runs(self) -> Sequence[RecordedRun]: ...
    @property
    def reward(self) -> float | None:
        """Mean over the measured runs; None if there is none."""
        ...


def default_slug(task_id: str, args: dict[str, Any]) -> str:
    """Return the default slug of a task: its id, and a digest of its arguments, if any."""
    if not args:
        return task_id
    text = json.dumps(plain_value(args), sort_keys=True, default=str)
    return f"{task_id}-{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]}"


def task_label(
    slug: str,
    task_id: str,
    args: dict[str, Any],
    equal_args: Sequence[dict[str, Any]] = (),
    most: int | None = None,
) -> str:
    """Return a task's display name: `total(order=7, currency='EUR')` instead of a digest, else its slug.

    If it is longer than `most`, arguments lose their names: `total(7, 'EUR')`. `equal_args`: other forms of `args`.
    """
    defaults = [default_slug(task_id, form) for form in (args, *equal_args) if form]
    number = next(
        (slug.removeprefix(f"{form}-") for form in defaults if slug.startswith(f"{form}-")), ""
    )
    default = (
        slug.removesuffix(f"-{number}") if number.isdigit() else slug
    )  # Of a repetition in its taskset.
    if not args or default not in defaults:
        return slug
    again = "" if slug == default else f" ({number})"
    label = f"{task_id}({', '.join(f'{name}={value!r}' for name, value in args.items())}){again}"
    if most is None or len(label) <= most:
        return label
    return f"{task_id}({', '.join(map(repr, args.values()))}){again}"


class Task(BaseModel):
    """A task: a template of an environment, with arguments."""

    model_config = ConfigDict(extra="forbid")

    env: str
    """Name of the environment."""
    id: str
    """Id of the template."""
    args: dict[str, Any] = Field(default_factory=dict)
    slug: str = ""
    """Name of the task, unique in its taskset; default: made from `id` and `args`."""
    columns: dict[str, Any] | None = None
    validation: Any = None
    agent_config: dict[str, Any] | None = None
    runtime_config: dict[str, Any] | None = None
    """Requirements for its runtime; of a `RuntimeConfig` the set fields are stored."""
    verifier: Task | None = None
    """A task without an agent that computes the final grade: its answer is the grade of this one, as JSON."""

    _environment: Environment | None = PrivateAttr(default=None)
    _source: str | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _fill_slug(cls, values: Any) -> Any:
        if (
            isinstance(values, dict)
            and not values.get("slug")
            and isinstance(values.get("id"), str)
        ):
            return {**values, "slug": default_slug(values["id"], values.get("args") or {})}
        return values

    @field_validator("runtime_config", mode="before")
    @classmethod
    def _as_data(cls, value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        return value

    def __eq__(self, other: object) -> bool:
        """Compare the tasks' data; bound environments are ignored."""
        return isinstance(other, Task) and self.__dict__ == other.__dict__

    @property
    def environment(self) -> Environment | None:
        """The environment that created the task, or that it was bound to; None for plain data."""
        return self._environment

    def copied(self) -> Task:
        """Return a copy that shares no list or object of its data; it is bound to the same environment."""
        task = self.model_copy()
        for name in ("args", "columns", "validation", "agent_config", "runtime_config"):
            setattr(task, name, copied(getattr(task, name)))
        return task

    def bind(self, environment: Environment) -> Task:
        """Bind the task to an environment, and return it. A slug that is made from the arguments leaves out defaults."""
        is_default = self.slug == default_slug(self.id, self.args)
        self._environment = environment
        if is_default and (forms := self.equal_args):
            self.slug = default_slug(self.id, forms[0])
        return self

    @property
    def equal_args(self) -> list[dict[str, Any]]:
        """Other forms of `args`: without arguments that equal their default, and with all defaults.

        Empty for a task without its environment, and for arguments that its template refuses.
        """
        template = None
        if self._environment is not None:
            template = self._environment.templates.get(self.id)
        if template is None:
            return []
        try:
            return list(template.arguments.forms(self.args))
        except UsageError:
            return []

    @property
    def identity(self) -> TaskIdentity:
        """Environment, template and arguments, for comparisons with other tasks."""
        return TaskIdentity.of(self.env, self.id, self.args, self.equal_args or None)

    @property
    def label(self) -> str:
        """Display name of the task: its slug, or its call if the slug has a digest of its arguments."""
        return task_label(self.slug, self.id, self.args, self.equal_args)

    def _repr_html_(self) -> str:
        from hud.trace.notebook.html_table import table, titled

        rows = [("environment", self.env), ("template", self.id), ("slug", self.slug)]
        rows += [(f"argument {name}", repr(value)) for name, value in self.args.items()]
        rows += [
            (name, repr(value))
            for name in ("columns", "agent_config", "runtime_config")
            if (value := getattr(self, name)) is not None
        ]
        return titled(f"Task {self.label}", table(("", ""), rows))

    async def run(
        self,
        agent: Player,
        *,
        runtime: Provider | None = None,
        group: int | None = None,
        max_concurrent: int | None = None,
        job: EvaluatedJob | None = None,
        rollout_timeout: float | None = None,
        tool_timeout: float | None = None,
        recorder: Recorder | None = None,
        on_run: Callable[[Any], None] | None = None,
    ) -> EvaluatedJob:
        """Run this task alone and return its `Job`; agent and options are those of `Taskset.run`."""
        from hud.environment import Taskset

        evaluated: EvaluatedJob = await Taskset(self.slug or self.id, [self]).run(
            agent,
            runtime=runtime,
            group=group,
            max_concurrent=max_concurrent,
            job=job,
            rollout_timeout=rollout_timeout,
            tool_timeout=tool_timeout,
            recorder=recorder,
            on_run=on_run,
        )
        return evaluated
