"""Source of `hud eval`: tasks of TASKS or of a benchmark, and the file of their environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hud.environment.sources.near_files import near_file
from hud.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.eval import Taskset


@dataclass(frozen=True)
class TaskSource:
    """Tasks, the path of their environment for other processes, and the factory of their solver."""

    tasks: Taskset
    path: Path | None
    """None for a benchmark, whose environments have separate files."""
    oracle: Callable[[], Agent] | None = None
    """Raises `UsageError` for a benchmark without a solver."""
    has_oracle: bool = False


def task_source(source: str | None, benchmark: str | None, split: str | None) -> TaskSource:
    """Return the tasks of a file, a folder or the platform's taskset, or of a benchmark."""
    if benchmark is not None:
        return _of_benchmark(benchmark, split or "held-out")
    if split is not None:
        raise UsageError("--split goes with --benchmark.")
    if source is None:
        raise UsageError(
            "Which tasks? Give TASKS (.py, .json, .jsonl, a folder, or the platform's taskset), or --benchmark NAME."
        )
    return TaskSource(_load(Path(source)), Path(source))


def _of_benchmark(name: str, split: str) -> TaskSource:
    from hud.benchmarks import benchmark

    chosen = benchmark(name)
    return TaskSource(chosen.tasks(split), None, chosen.oracle, chosen.make_oracle is not None)


def _load(source: Path) -> Taskset:
    """Return the tasks in a file or folder, or else the platform's taskset of this name."""
    from hud.eval import Taskset

    if source.exists() or source.suffix in (".py", ".json", ".jsonl"):
        return Taskset.from_file(source)
    try:
        return Taskset.from_api(str(source))
    except NotFoundError:
        near = near_file(source)
        meant = "" if near is None else f" Did you mean {near}?"
        raise NotFoundError(
            f"There is no file {source}, and the platform has no taskset of that name.{meant}"
        ) from None


def chosen(tasks: Taskset, task_ids: str | None, everything: bool) -> Taskset:
    """Return the selected tasks: some, all, or the first."""
    if not tasks:
        raise UsageError(f"{tasks.name!r} has no tasks; give a file or folder with at least one.")
    if task_ids is None:
        return tasks if everything else tasks.filter([tasks[0].slug])
    wanted = [part.strip() for part in task_ids.split(",") if part.strip()]
    slugs = [
        tasks[int(part)].slug
        if part.isdigit() and part not in tasks and int(part) < len(tasks)
        else part
        for part in wanted
    ]
    return tasks.filter(slugs)
