"""The training run of a script that calls `TrainingClient.step`: recorded as those of `hud train` are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hud.client import Client
from hud.errors import NotFoundError, PlatformError
from hud.learning.wire_types import StepResult


class ScriptRun:
    """The run of one client: opened with its first step, at the platform."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._absent = False
        """True for a server without the routes of training runs."""
        self._steps = 0
        self._jobs: list[str] = []
        self._tasks: list[str] = []
        self._turn = asyncio.Lock()

    async def record(
        self,
        platform: Client,
        model_id: str,
        trajectories: Sequence[Any],
        config: dict[str, Any],
        result: StepResult,
    ) -> None:
        """Record a step that was applied."""
        async with self._turn:
            if self._absent:
                return
            self._note(trajectories)
            shown = {**config, "tasks": ", ".join(self._tasks) or None, "script": True}
            state = {"jobs": self._jobs, "checkpoint": result.checkpoint_id}
            if self._id is None:
                body = {"model": model_id, "config": shown, "state": state}
                try:
                    self._id = str((await platform.post("/v2/training-runs", body))["id"])
                except (NotFoundError, PlatformError) as error:
                    if error.status not in (404, 405):
                        raise
                    self._absent = True
                    return
            metrics = dict(result.metrics)
            if result.reward is not None:
                metrics["rollout_reward:mean"] = result.reward
            step = {"step": self._steps, "next_step": self._steps + 1, "metrics": metrics}
            self._steps += 1
            path = f"/v2/training-runs/{self._id}"
            await platform.post(f"{path}/steps", {**step, "state": state})

    def _note(self, trajectories: Sequence[Any]) -> None:
        """Add the jobs and the tasks of new runs; trace ids and payloads name none."""
        for run in trajectories:
            job, task = getattr(run, "job_id", None), getattr(run, "task", None)
            if job is not None and job not in self._jobs:
                self._jobs.append(job)
            name = f"{task.env}:{task.id}" if task is not None else None
            if name is not None and name not in self._tasks:
                self._tasks.append(name)
