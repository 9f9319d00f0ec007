"""Evaluation: tasksets, rollouts, runs and jobs.

    job = await Taskset.from_file("tasks.py").run(agent, group=8)
    print(job.reward, job.statistics.interval)

The module is also callable, for the older form: `async with hud.eval(task) as ctx: ...`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.environment.templates.runtime_config import (
        ComposeProject,
        RuntimeConfig,
        RuntimeGPU,
        RuntimeLimits,
        RuntimeResources,
        RuntimeTPU,
    )
    from hud.environment.templates.task import Provider, Task
    from hud.eval.chat import Chat
    from hud.eval.eval_context import evaluate
    from hud.eval.grade import Grade
    from hud.eval.job import Job
    from hud.eval.results.job_statistics import JobStatistics, job_statistics
    from hud.eval.results.run_summary import RunSummary
    from hud.eval.rollouts import rollout
    from hud.eval.run import Run
    from hud.eval.runtimes import (
        ForkRuntime,
        HostedRuntime,
        HUDRuntime,
        LocalRuntime,
        PerSource,
        Runtime,
        Shared,
        SubprocessRuntime,
    )
    from hud.eval.scheduler import StopSignal, plan_missing
    from hud.eval.tasksets.synchronization import SyncPlan
    from hud.eval.tasksets.taskset import Taskset
    from hud.trace.recording.recorder import NullRecorder, Recorder

_HOMES = {
    "Chat": "hud.eval.chat",
    "ComposeProject": "hud.environment.templates.runtime_config",
    "ForkRuntime": "hud.eval.runtimes",
    "Grade": "hud.eval.grade",
    "HUDRuntime": "hud.eval.runtimes",
    "HostedRuntime": "hud.eval.runtimes",
    "Job": "hud.eval.job",
    "JobStatistics": "hud.eval.results.job_statistics",
    "LocalRuntime": "hud.eval.runtimes",
    "PerSource": "hud.eval.runtimes",
    "NullRecorder": "hud.trace.recording.recorder",
    "Provider": "hud.environment.templates.task",
    "Recorder": "hud.trace.recording.recorder",
    "Run": "hud.eval.run",
    "RunSummary": "hud.eval.results.run_summary",
    "Runtime": "hud.eval.runtimes",
    "RuntimeConfig": "hud.environment.templates.runtime_config",
    "RuntimeGPU": "hud.environment.templates.runtime_config",
    "RuntimeLimits": "hud.environment.templates.runtime_config",
    "RuntimeResources": "hud.environment.templates.runtime_config",
    "RuntimeTPU": "hud.environment.templates.runtime_config",
    "Shared": "hud.eval.runtimes",
    "StopSignal": "hud.eval.scheduler",
    "SubprocessRuntime": "hud.eval.runtimes",
    "SyncPlan": "hud.eval.tasksets.synchronization",
    "Task": "hud.environment.templates.task",
    "Taskset": "hud.eval.tasksets.taskset",
    "evaluate": "hud.eval.eval_context",
    "job_statistics": "hud.eval.results.job_statistics",
    "plan_missing": "hud.eval.scheduler",
    "rollout": "hud.eval.rollouts",
}

__all__ = [
    "Chat",
    "ComposeProject",
    "ForkRuntime",
    "Grade",
    "HUDRuntime",
    "HostedRuntime",
    "Job",
    "JobStatistics",
    "LocalRuntime",
    "NullRecorder",
    "PerSource",
    "Provider",
    "Recorder",
    "Run",
    "RunSummary",
    "Runtime",
    "RuntimeConfig",
    "RuntimeGPU",
    "RuntimeLimits",
    "RuntimeResources",
    "RuntimeTPU",
    "Shared",
    "StopSignal",
    "SubprocessRuntime",
    "SyncPlan",
    "Task",
    "Taskset",
    "evaluate",
    "job_statistics",
    "plan_missing",
    "rollout",
]

__getattr__ = lazy(__name__, _HOMES)


class _CallableModule(ModuleType):
    """Module type that is also callable, for `hud.eval(task)`."""

    def __call__(self, task: Task, **options: Any) -> AbstractAsyncContextManager[Run]:
        """Open `task` and yield its run; see `hud.eval.evaluate` for the options."""
        from hud.eval.eval_context import evaluate

        return evaluate(task, **options)


sys.modules[__name__].__class__ = _CallableModule
