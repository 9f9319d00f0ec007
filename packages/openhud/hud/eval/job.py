"""`Job`: the results of a batch of runs, or of several related batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hud.errors import UsageError
from hud.eval.run import Run
from hud.trace import new_id
from hud.trace.recording.job_purpose import Purpose
from hud.trace.recording.recorder import NullRecorder, Recorder

if TYPE_CHECKING:
    from hud.eval.results.job_statistics import JobStatistics


def default_recorder() -> Recorder:
    """Return the recorder of this process: the platform's, in this process or over HTTP."""
    from hud import client  # Imports serialization libraries, which not every user needs.

    return client.recorder()


@dataclass(eq=False, repr=False)
class Job:
    """Runs in the order of tasks, with each task's group adjacent."""

    id: str
    name: str
    runs: list[Run] = field(default_factory=list)
    group: int = 1
    """Runs of each task."""
    planned: int | None = None
    """Number of runs that the job will have, those of a resumed job included; None: not fixed, as in training."""
    taskset: str | None = None
    """Name of the taskset, for displays."""
    taskset_id: str | None = None
    """Id of the platform's taskset; None: the tasks are of a file or of Python."""
    benchmark: str | None = None
    """Name of the tasks' benchmark."""
    purpose: Purpose = "evaluation"
    """An evaluation, rollouts of a training run, its held-out score, or calls of a subagent (`hud.trace.recording.job_purpose`)."""
    called_by: str | None = None
    """The job of the callers, for subagents' runs."""
    called_as: str | None = None
    """The tool that the callers called, for subagents' runs."""
    graded_from: str | None = None
    """The job whose recorded runs these are, graded again; None: its runs were played."""
    interrupted: bool = False
    """True if it was stopped before every run was started."""
    concurrency: Mapping[str, Any] | None = None
    """Limits in force below `max_concurrent` (`hud.eval.concurrency.in_force`); None: there were none."""
    recorder: Recorder = field(default_factory=NullRecorder, repr=False)
    active: list[Run] = field(default_factory=list)
    """Runs that are being played, in the order of their starts."""

    @classmethod
    async def start(
        cls,
        name: str,
        *,
        group: int = 1,
        planned: int | None = None,
        taskset: str | None = None,
        taskset_id: str | None = None,
        benchmark: str | None = None,
        purpose: Purpose = "evaluation",
        graded_from: str | None = None,
        recorder: Recorder | None = None,
    ) -> Job:
        """Open a job; pass it to any number of `run(..., job=job)`, then `await job.finish()`.

        `planned` is the number of runs that it will have, for displays of its progress. Raises `UsageError` for a `group`
        below 1 and for a negative `planned`.
        """
        if group < 1:
            raise UsageError(f"group must be at least 1, not {group}.")
        if planned is not None and planned < 0:
            raise UsageError(f"planned must be at least 0, not {planned}.")
        job = cls(
            id=new_id(),
            name=name,
            group=group,
            planned=planned,
            taskset=taskset,
            taskset_id=taskset_id,
            benchmark=benchmark,
            purpose=purpose,
            graded_from=graded_from,
            recorder=recorder if recorder is not None else default_recorder(),
        )
        job.recorder.job_started(job)
        return job

    async def finish(self) -> None:
        """Close the job: no runs can be added, and all recorded data is durable."""
        self.recorder.job_ended(self)
        await self.recorder.flush()

    @property
    def reward(self) -> float | None:
        """Mean reward over the measured runs; None if there is none."""
        rewards = [run.reward for run in self.runs if run.reward is not None]
        return fmean(rewards) if rewards else None

    @property
    def results(self) -> dict[str, list[Run]]:
        """The runs of each task, by its slug."""
        results: dict[str, list[Run]] = {}
        for run in self.runs:
            results.setdefault(run.slug, []).append(run)
        return results

    @property
    def errors(self) -> list[Run]:
        """The failed runs, of any failure kind."""
        return [run for run in self.runs if run.failed]

    @property
    def statistics(self) -> JobStatistics:
        """Means, intervals, pass@k and costs of the runs so far."""
        from hud.eval.results.job_statistics import job_statistics  # NumPy is imported on demand.

        return job_statistics([run.summary() for run in self.runs])

    def to_pandas(self) -> Any:
        """Return the runs as a pandas data frame, one row a run. Raises `UsageError` without pandas."""
        from hud.eval.results.data_frame import data_frame

        return data_frame(self.runs)

    def __repr__(self) -> str:
        from hud.eval.results.notebook import job_text

        return job_text(self)

    def _repr_html_(self) -> str:
        from hud.eval.results.notebook import job_html

        return job_html(self)
