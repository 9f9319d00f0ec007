"""`server_app`: tasks of ours as a server of OpenEnv, for its clients and for trainers that have them.

An episode is a run of one task: its observation shows the prompt and the tools, a step calls a tool or gives the answer, and
the answer's observation has the reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as OpenEnvInterface
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from hud.environment import Task
from hud.errors import UsageError
from hud.eval import Job, LocalRuntime, Taskset
from hud_integrations.shared.driven_run import DrivenRun, measured_reward
from hud_integrations.shared.event_loop import wait_for
from hud_integrations.shared.jobs import JobOnDemand

if TYPE_CHECKING:
    from fastapi import FastAPI

    from hud.environment.templates.task import Provider


class TaskAction(Action):  # type: ignore[misc]
    """A call of a tool, or the answer, which ends the episode."""

    tool_name: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    answer: str | None = None


class TaskObservation(Observation):  # type: ignore[misc]
    """The prompt and the tools after a reset, the result after a call of a tool."""

    prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    """Tools as function declarations: name, description, JSON schema of the parameters."""
    result: str | None = None
    is_error: bool = False


class TaskState(State):  # type: ignore[misc]
    """The task of the episode, by its slug."""

    task_id: str | None = None


class _Server:
    """Tasks, runtime and job of an application."""

    def __init__(self, taskset: Taskset, runtime: Provider) -> None:
        self.taskset, self.runtime = taskset, runtime
        self._job = JobOnDemand(f"{taskset.name} (openenv)")
        self._places = count()
        """Numbers of the tasks that are taken in order; sessions take them from several threads."""

    @property
    def job(self) -> Job:
        return wait_for(self._job.get())

    def task(self, task_id: str | None, seed: int | None) -> Task:
        """Return a task by its slug, else by the seed, else the next one in order."""
        if task_id is not None:
            return self.taskset[task_id]
        place = next(self._places) if seed is None else seed
        return self.taskset[place % len(self.taskset)]


class _TaskEnvironment(OpenEnvInterface):  # type: ignore[misc]
    """One session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, server: _Server) -> None:
        super().__init__()
        self._server = server
        self._driven = DrivenRun()
        self._state = TaskState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task_id: str | None = None,
        **_: Any,
    ) -> TaskObservation:
        """Start a run of the task `task_id` (its slug), or of the one that `seed` counts out."""
        task = self._server.task(task_id, seed)
        run = self._driven.start(task, self._server.runtime, self._server.job)
        self._state = TaskState(episode_id=episode_id or str(uuid4()), task_id=task.slug)
        tools = [tool.function() for tool in run.tools]
        return TaskObservation(
            prompt=run.prompt_text, tools=tools, metadata={"trace_id": run.trace_id}
        )

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> TaskObservation:
        """Call a tool, or give the answer. Raises `UsageError` for an action that is neither."""
        del timeout_s
        self._state.step_count += 1
        if action.answer is not None:
            run = self._driven.answer(action.answer)
            facts = {"trace_id": run.trace_id, "failure_kind": run.failure_kind, "error": run.error}
            return TaskObservation(
                done=True,
                reward=measured_reward(run),
                result=run.grade.content,
                metadata={name: value for name, value in facts.items() if value is not None},
            )
        if action.tool_name is None:
            raise UsageError("An action has a tool_name with its arguments, or an answer.")
        result = self._driven.call(action.tool_name, action.arguments)
        return TaskObservation(result=result.text, is_error=result.is_error)

    @property
    def state(self) -> TaskState:
        return self._state

    def close(self) -> None:
        self._driven.close()


def server_app(
    tasks: Taskset | Sequence[Task],
    *,
    name: str = "tasks",
    runtime: Provider | None = None,
    max_concurrent: int = 64,
) -> FastAPI:
    """Return the ASGI application, for uvicorn. `runtime`: a `LocalRuntime` by default.

    `max_concurrent`: most sessions at a time. Raises `UsageError` for an empty taskset.
    """
    taskset = tasks if isinstance(tasks, Taskset) else Taskset(name, tasks)
    if not len(taskset):
        raise UsageError(f"Taskset {taskset.name!r} has no tasks to serve.")
    server = _Server(taskset, runtime or LocalRuntime())
    app: FastAPI = create_fastapi_app(
        lambda: _TaskEnvironment(server),
        TaskAction,
        TaskObservation,
        max_concurrent_envs=max_concurrent,
        env_name=taskset.name,
        state_cls=TaskState,
    )
    return app
