"""A new job of recorded runs, graded again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.environment.templates.task_identity import TaskIdentity, TaskIndex
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.regrading.recorded_agent import RecordedAgent, RecordedAnswer, recorded_answer
from hud.eval.scheduler import PlannedRun, StopSignal, run_planned
from hud.trace import new_id

if TYPE_CHECKING:
    from hud.client import Client
    from hud.environment import Task
    from hud.environment.templates.task import Provider
    from hud.eval.judging.group_judge import GroupJudge
    from hud.eval.run import Run

_NO_TASK = "without a task among these: environment, template and arguments must be equal"


@dataclass
class Regrading:
    """Plan of a new job, and the runs that it leaves out."""

    source: Mapping[str, Any]
    """The recorded job."""
    planned: list[PlannedRun] = field(default_factory=list)
    answers: dict[tuple[str | None, int], RecordedAnswer] = field(default_factory=dict)
    """By group and attempt in the new job."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of runs, by the reason."""

    @classmethod
    def of(
        cls, source: Mapping[str, Any], runs: Iterable[Mapping[str, Any]], tasks: Iterable[Task]
    ) -> Regrading:
        """Return the plan for the runs of a job (`GET /v2/jobs/ID/traces`).

        Runs of a group stay a group. Raises `UsageError` if no run can be graded.
        """
        plan = cls(source)
        finder = _TaskFinder(tasks)
        groups: dict[Any, str] = {}
        sizes: Counter[str] = Counter()
        for run in runs:
            answer = recorded_answer(run)
            task = finder.task(run["task"]) if isinstance(answer, RecordedAnswer) else None
            if isinstance(answer, str) or task is None:
                plan.left_out[answer if isinstance(answer, str) else _NO_TASK] += 1
                continue
            group = groups.setdefault((run["group_id"] or run["id"], task.slug), new_id())
            plan.planned.append(PlannedRun(task, sizes[group], group))
            plan.answers[group, sizes[group]] = answer
            sizes[group] += 1
        if not plan.planned:
            reasons = "; ".join(f"{count} {reason}" for reason, count in plan.left_out.items())
            raise UsageError(
                f"No run of job {source['id']} can be graded again: {reasons or 'it has none'}."
            )
        return plan

    async def play(
        self,
        client: Client,
        provider: Provider | None,
        *,
        repeat_calls: bool = True,
        max_concurrent: int | None = None,
        stop: StopSignal | None = None,
        on_run: Callable[[Run], None] | None = None,
        judge: GroupJudge | None = None,
    ) -> Job:
        """Grade the planned runs into a new job, which is finished; `judge` grades each group after the tasks' grader."""
        job = await Job.start(
            f"{self.source['name']}, graded again",
            group=self.source["group_size"],
            planned=len(self.planned),
            benchmark=self.source["benchmark"],
            graded_from=self.source["id"],
        )
        agent = RecordedAgent(client, self.answers, repeat_calls=repeat_calls)
        try:
            job.runs += await run_planned(
                self.planned,
                agent,
                job,
                provider,
                max_concurrent=max_concurrent,
                stop=stop,
                on_run=on_run,
                judge=judge,
            )
        except BaseException:
            job.interrupted = True
            raise
        finally:
            await job.finish()
        return job

    def before(self, run: Run) -> RecordedAnswer:
        """Return the recorded run that a run of the new job repeats."""
        return self.answers[run.group_id, run.attempt]


class _TaskFinder:
    """Finder of tasks by recorded ones."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks: dict[tuple[str, str], list[tuple[TaskIndex, Task]]] = {}
        for task in tasks:
            index = TaskIndex([task.identity])
            self._tasks.setdefault((task.env, task.id), []).append((index, task))

    def task(self, recorded: Any) -> Task | None:
        """Return the first task that is the recorded one."""
        if not isinstance(recorded, dict):
            return None
        identity = TaskIdentity.recorded(recorded)
        same = (task for index, task in self._tasks.get(identity.template, ()) if identity in index)
        return next(same, None)
