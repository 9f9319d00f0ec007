"""`RunRecord`: the plain data of an attempt at a task, complete once the run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hud.errors import FailureKind
from hud.eval.grade import Grade
from hud.trace import Message, ToolSpec, Trace, new_id, now
from hud.trace.recorded_time import seconds_between

if TYPE_CHECKING:
    from hud.environment import Task


@dataclass(eq=False, repr=False)
class RunRecord:
    """Task, trace, grade and times of a run, without connections and agents."""

    task: Task
    trace: Trace = field(default_factory=lambda: Trace(trace_id=new_id()))
    job_id: str | None = None
    group_id: str | None = None
    """Group id, shared by runs of a task whose rewards are compared."""
    attempt: int = 0
    """Index among its group's runs, from 0."""
    model: str | None = None
    runtime: str | None = None
    """Address of the environment, or `local`."""
    prompt: str | Sequence[Message] = ""
    tools: list[ToolSpec] = field(default_factory=list)
    """The agent's available tools; after the run, the last ones."""
    grade: Grade = field(default_factory=Grade.ungraded)
    failure_kind: FailureKind | None = None
    error: str | None = None
    started_at: datetime = field(default_factory=now)
    ended_at: datetime | None = None

    @property
    def trace_id(self) -> str:
        """Id of the run, which is also its trace's."""
        assert self.trace.trace_id is not None
        return self.trace.trace_id

    @property
    def slug(self) -> str:
        return self.task.slug or self.task.id

    @property
    def task_id(self) -> str:
        """Id of the task's template."""
        return self.task.id

    @property
    def reward(self) -> float | None:
        """The grade's reward; None without a measurement."""
        return self.grade.reward

    @property
    def content(self) -> str | None:
        return self.trace.content

    @property
    def evaluation(self) -> dict[str, Any]:
        """The environment's grade frame."""
        return self.grade.raw

    @property
    def agent_config(self) -> dict[str, Any]:
        """The task's agent settings, which override the agent's own."""
        return self.task.agent_config or {}

    @property
    def prompt_messages(self) -> list[Message]:
        if isinstance(self.prompt, str):
            return [Message(content=self.prompt)]
        return list(self.prompt)

    @property
    def prompt_text(self) -> str:
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(message.text for message in self.prompt)

    @property
    def failed(self) -> bool:
        """True for a failed run; a low reward is not a failure."""
        return self.failure_kind is not None or self.trace.status != "completed"

    @property
    def measured(self) -> bool:
        """True for a run with a grade of its answer; a run that its agent failed has the reward 0 without one."""
        return self.reward is not None and self.failure_kind is None

    @property
    def seconds(self) -> float | None:
        """Wall-clock time of the run, in seconds."""
        return seconds_between(self.started_at, self.ended_at)
