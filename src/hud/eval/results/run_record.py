"""`RunRecord`: the plain data of one attempt at a task, complete once the run has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hud.errors import FailureKind
from hud.eval.grade import Grade
from hud.trace import Message, ToolSpec, Trace, new_id, now

if TYPE_CHECKING:
    from hud.environment import Task


@dataclass(eq=False, repr=False)
class RunRecord:
    """Task, trace, grade and times of one run: no connection, no agent, nothing that ends with its process."""

    task: Task
    trace: Trace = field(default_factory=lambda: Trace(trace_id=new_id()))
    job_id: str | None = None
    group_id: str | None = None
    """Runs of one task that are compared with one another share it."""
    attempt: int = 0
    """Place among its group's runs, from 0."""
    model: str | None = None
    runtime: str | None = None
    """Address of the environment, or `local`."""
    prompt: str | Sequence[Message] = ""
    tools: list[ToolSpec] = field(default_factory=list)
    """Tools that the agent is offered; after the run, those that it was offered last."""
    grade: Grade = field(default_factory=Grade.ungraded)
    failure_kind: FailureKind | None = None
    error: str | None = None
    started_at: datetime = field(default_factory=now)
    ended_at: datetime | None = None

    @property
    def trace_id(self) -> str:
        """Id of the run and of its trace: the same thing."""
        assert self.trace.trace_id is not None
        return self.trace.trace_id

    @property
    def slug(self) -> str:
        return self.task.slug or self.task.id

    @property
    def task_id(self) -> str:
        """Id of the template that the task was made from."""
        return self.task.id

    @property
    def reward(self) -> float | None:
        """The grade's reward; None where nothing was measured."""
        return self.grade.reward

    @property
    def content(self) -> str | None:
        return self.trace.content

    @property
    def evaluation(self) -> dict[str, Any]:
        """The grade frame as the environment sent it."""
        return self.grade.raw

    @property
    def agent_config(self) -> dict[str, Any]:
        """Settings of the agent that the task asks for, over the agent's own."""
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
        """True when something broke; a low reward is not a failure."""
        return self.failure_kind is not None or self.trace.status != "completed"

    @property
    def seconds(self) -> float | None:
        """Wall-clock time that the run took."""
        return None if self.ended_at is None else (self.ended_at - self.started_at).total_seconds()
