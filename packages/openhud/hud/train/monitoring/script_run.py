"""The training run of a script that uses a `TrainingClient`: recorded as those of `hud train` are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hud.client import Client
from hud.errors import NotFoundError, PlatformError
from hud.learning.metrics import merge
from hud.learning.wire_types import ForwardBackwardResult, OptimStepResult


class ScriptRun:
    """The run of one client: opened with its first optimizer step, at the platform."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._absent = False
        """True for a server without the routes of training runs."""
        self._steps = 0
        self._jobs: list[str] = []
        self._tasks: list[str] = []
        self._passes: list[dict[str, float]] = []
        """Metrics of the passes since the last optimizer step."""
        self._datums = 0
        self._config: dict[str, Any] = {}
        self._turn = asyncio.Lock()

    def note(
        self,
        trajectories: Sequence[Any],
        result: ForwardBackwardResult,
        config: Mapping[str, Any],
    ) -> None:
        """Note a pass of the next optimizer step: its metrics, and the jobs and tasks of its runs."""
        self._passes.append(result.metrics)
        self._datums += result.num_datums
        self._config |= config
        for run in trajectories:  # Trace ids and payloads name no job.
            job, task = getattr(run, "job_id", None), getattr(run, "task", None)
            if job is not None and job not in self._jobs:
                self._jobs.append(job)
            name = f"{task.env}:{task.id}" if task is not None else None
            if name is not None and name not in self._tasks:
                self._tasks.append(name)

    @property
    def pending(self) -> bool:
        """True if a pass since the last optimizer step had a datum."""
        return self._datums > 0

    def forget(self) -> None:
        """Forget the passes since the last optimizer step: there is no gradient of them."""
        self._passes, self._datums = [], 0

    async def record(
        self,
        platform: Client,
        model_id: str,
        config: Mapping[str, Any],
        result: OptimStepResult,
        reward: float | None = None,
    ) -> None:
        """Record an optimizer step that was applied. `reward`: measured by the caller."""
        passes = self._passes
        self.forget()
        async with self._turn:
            if self._absent:
                return
            self._config |= config
            shown = {**self._config, "tasks": ", ".join(self._tasks) or None, "script": True}
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
            metrics = merge(passes) if passes else {}
            mean = metrics.get("reward:mean") if reward is None else reward
            if mean is not None:
                metrics["rollout_reward:mean"] = mean
            step = {"step": self._steps, "next_step": self._steps + 1, "metrics": metrics}
            self._steps += 1
            path = f"/v2/training-runs/{self._id}"
            await platform.post(f"{path}/steps", {**step, "state": state})
