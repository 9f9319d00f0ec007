"""`Taskset`: a named, ordered collection of tasks with unique slugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, overload

from hud.environment.templates.task import Player, Provider, default_slug
from hud.errors import NotFoundError, UsageError
from hud.eval.job import Job
from hud.eval.results.notebook_progress import notebook_progress
from hud.eval.rollouts import prepared
from hud.eval.run import Run
from hud.eval.runtimes.local import LocalRuntime
from hud.eval.scheduler import (
    Finished,
    StopSignal,
    check_limits,
    patient_collector,
    plan_missing,
    run_planned,
)
from hud.eval.tasksets.suggestions import did_you_mean
from hud.trace.recording.recorder import Recorder

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.judging.group_judge import GroupJudge
    from hud.eval.snapshots.snapshot_folder import SnapshotFolder


class Taskset:
    """An ordered collection of tasks; supports `taskset["slug"]`, `taskset[0]`, iteration and `len`.

    A slice, `taskset[:4]`, or a list of positions and slugs, `taskset[[0, 2]]`, is a taskset.
    """

    def __init__(
        self,
        name: str | None = None,
        tasks: Iterable[Task] = (),
        *,
        taskset_id: str | None = None,
        benchmark: str | None = None,
    ) -> None:
        self.name = name or "tasks"
        self.tasks = _distinct(tasks)
        self.taskset_id = taskset_id
        self.benchmark = benchmark
        twice = [slug for slug, many in Counter(map(slug_of, self.tasks)).items() if many > 1]
        if twice:
            raise UsageError(
                f"Taskset {self.name!r} has more than one task with the slug {twice[0]!r}"
                f"{f' (and {len(twice) - 1} more such slugs)' if len(twice) > 1 else ''}; "
                "give each its own slug=."
            )
        self._by_slug = {slug_of(task): task for task in self.tasks}

    @classmethod
    def from_file(cls, path: str | Path) -> Taskset:
        """Load a `.py`, `.json` or `.jsonl` file, or a folder with one.

        The tasks of a Python file are those of its `tasks`; without that name, all at its top level; without any, one of
        each template without required arguments.
        """
        from hud.eval.tasksets.sources import load_tasks  # Imports this module.

        path = Path(path)
        return cls(path.resolve().stem, load_tasks(path))

    @classmethod
    def from_module(cls, source: str | Path) -> Taskset:
        """Load the tasks of a Python file, or of an importable module by its dotted name."""
        from hud.eval.tasksets.sources import load_module_tasks

        return cls(str(source).rpartition(".")[2] or "tasks", load_module_tasks(source))

    @classmethod
    def from_api(cls, name: str) -> Taskset:
        """Fetch the platform's taskset of this name or id. Blocking; raises `NotFoundError` for an unknown one."""
        from hud.eval.tasksets.synchronization import fetch_blocking

        return fetch_blocking(name)

    def to_file(self, path: str | Path) -> None:
        """Write the tasks as `.json` or `.jsonl`, by the path's suffix."""
        from hud.eval.tasksets.sources import save_tasks

        save_tasks(self.tasks, Path(path))

    def filter(self, slugs: Iterable[str]) -> Taskset:
        """Return a taskset of the tasks with these slugs, in this set's order."""
        wanted = {slug_of(self[slug]) for slug in slugs}
        return self._part(task for task in self.tasks if slug_of(task) in wanted)

    def exclude(self, slugs: Iterable[str]) -> Taskset:
        """Return a taskset without these slugs."""
        unwanted = {slug_of(self[slug]) for slug in slugs}
        return self._part(task for task in self.tasks if slug_of(task) not in unwanted)

    def items(self) -> Iterator[tuple[str, Task]]:
        """Yield slugs and tasks."""
        return iter(self._by_slug.items())

    def environment_names(self) -> list[str]:
        """The names of the tasks' environments, in order of first use."""
        return list(dict.fromkeys(task.env for task in self.tasks))

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __contains__(self, key: object) -> bool:
        """Return True for the slug of a task, and for an equal task."""
        slug = getattr(key, "slug", key)
        if not isinstance(slug, str) or slug not in self._by_slug:
            return False
        return slug is key or self._by_slug[slug] == key

    @overload
    def __getitem__(self, key: str | int) -> Task: ...

    @overload
    def __getitem__(self, key: slice | list[str] | list[int]) -> Taskset: ...

    def __getitem__(self, key: str | int | slice | list[str] | list[int]) -> Task | Taskset:
        if isinstance(key, int):
            return self.tasks[key]
        if isinstance(key, slice):
            return self._part(self.tasks[key])
        if not isinstance(key, str):
            return self._part(self._selected(key))
        try:
            return self._by_slug[key]
        except KeyError:
            raise NotFoundError(
                f"Taskset {self.name!r} has no task {key!r}{did_you_mean(key, self._by_slug)}"
            ) from None

    def _selected(self, keys: list[str] | list[int]) -> list[Task]:
        """Return the tasks of positions or slugs. Raises `UsageError` for a task that is named twice."""
        tasks = [self[key] for key in keys]
        slug, many = Counter(map(slug_of, tasks)).most_common(1)[0] if tasks else ("", 0)
        if many > 1:
            raise UsageError(
                f"The selection from taskset {self.name!r} has more than one task with the slug {slug!r}; name each once."
            )
        return tasks

    def __repr__(self) -> str:
        return f"Taskset({self.name!r}, {len(self.tasks)} tasks)"

    def _repr_html_(self) -> str:
        from hud.eval.results.notebook import tasks_html

        return tasks_html(self.name, self.tasks)

    async def run(
        self,
        agent: Player,
        *,
        runtime: Provider | None = None,
        group: int | None = None,
        max_concurrent: int | None = None,
        job: Job | None = None,
        rollout_timeout: float | None = None,
        tool_timeout: float | None = None,
        finished: Iterable[Finished] = (),
        recorder: Recorder | None = None,
        stop: StopSignal | None = None,
        on_run: Callable[[Run], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
        judge: GroupJudge | None = None,
        snapshots: SnapshotFolder | None = None,
    ) -> Job:
        """Play every task `group` times and return the job, its runs in task order.

        `agent` is a model's slug, an `Agent`, a function of `(run)` that returns the answer, or a function of
        `(messages, tools, trace)` that returns a turn: text or tool calls. Another one raises `UsageError`, and nothing is
        recorded.

        With `job`, the runs are added to it and it stays open. With `finished` (a resumed job's earlier runs), only
        missing runs are played. At most `max_concurrent` rollouts (default 32) are concurrent. A failed rollout is a
        failed run in the job, never an exception. `tool_timeout` bounds each tool call of any agent, in seconds. `on_wait` is
        called with a sentence on a tool call without a result for 10 s, or on the run that everything waits for; by default
        tool calls are logged. `judge` grades the runs of each task together, after the environment.
        `snapshots` keeps those of environments that declare them, from which a resumed job's runs go on.
        """
        group = group if group is not None else (job.group if job is not None else 1)
        planned = plan_missing(self.tasks, group, finished)
        provider = runtime if runtime is not None else LocalRuntime()
        check_limits(max_concurrent, rollout_timeout, tool_timeout)
        notebook = notebook_progress(len(planned)) if on_run is None else None
        if notebook is not None:
            on_run = notebook.ended
        with patient_collector():
            async with (
                prepared(agent, provider) as player,
                self._job(job, group, len(planned), recorder) as opened,
            ):
                runs = await run_planned(
                    planned,
                    player,
                    opened,
                    provider,
                    max_concurrent=max_concurrent,
                    rollout_timeout=rollout_timeout,
                    tool_timeout=tool_timeout,
                    stop=stop,
                    on_run=on_run,
                    on_wait=on_wait,
                    judge=judge,
                    snapshots=snapshots,
                )
                opened.runs.extend(runs)
            return opened

    @asynccontextmanager
    async def _job(
        self, job: Job | None, group: int, planned: int, recorder: Recorder | None
    ) -> AsyncIterator[Job]:
        """Yield `job`, which stays open, or one of its own; what is recorded is durable at the end."""
        opened = job or await Job.start(
            self.name,
            group=group,
            planned=planned,
            taskset=self.name,
            taskset_id=self.taskset_id,
            benchmark=self.benchmark,
            recorder=recorder,
        )
        try:
            yield opened
        except BaseException:
            opened.interrupted = True
            raise
        finally:
            if job is None:
                await opened.finish()
            else:
                await opened.recorder.flush()

    def _part(self, tasks: Iterable[Task]) -> Taskset:
        return Taskset(self.name, tasks, taskset_id=self.taskset_id, benchmark=self.benchmark)


def _distinct(tasks: Iterable[Task]) -> list[Task]:
    """Return tasks, with numbered slugs (`count-2`) for repetitions, and for equal slugs that nobody chose."""
    first: dict[str, Task] = {}
    distinct: list[Task] = []
    tasks = list(tasks)
    taken = {slug_of(task) for task in tasks}
    for task in tasks:
        slug = slug_of(task)
        if slug not in first:
            first[slug] = task
        elif task == first[slug] or _is_default(task):
            number = next(n for n in count(2) if f"{slug}-{n}" not in taken)
            task = task.model_copy(update={"slug": f"{slug}-{number}"})
            taken.add(task.slug)
        distinct.append(task)
    return distinct


def _is_default(task: Task) -> bool:
    """True for a slug that is made from the task's arguments."""
    forms = (task.args, *task.equal_args)
    return slug_of(task) in {default_slug(task.id, form) for form in forms}


def slug_of(task: Task) -> str:
    """The task's slug; default: its template's id."""
    return task.slug or task.id
