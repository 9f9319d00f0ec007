"""Benchmarks on the local dashboard: offered as a taskset, with people's runs read back as baseline results."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from hud.benchmarks import Benchmark
from hud.benchmarks.baseline.baseline_file import PersonResult
from hud.benchmarks.baseline.recording import INSTRUCTIONS
from hud.environment import Task
from hud.eval.tasksets.taskset import slug_of
from hud.trace import new_id, plain
from hud_dashboard.human_baseline.jobs import scores
from hud_platform.environments.registry import SUCCEEDED, Environments, newest_build
from hud_platform.store import Store, tables
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.versions import Tasksets, row_of


def offer(store: Store, home: Path, name: str, tasks: Iterable[Task]) -> str:
    """Register tasks as the taskset `name`, and their environments as builds; returns the taskset's id."""
    rows = []
    for task in tasks:
        environment = task.environment
        assert environment is not None
        assert environment.source_file is not None
        _have_build(store, home, environment.name, Path(environment.source_file))
        rows.append(
            row_of({**task.model_dump(mode="json"), "name": slug_of(task), "task_id": task.id})
        )
    taskset = Tasksets(store, LOCAL_TEAM).upload(name, rows, taskset_id=None, project_id=None)
    return str(taskset["taskset_id"])


def results(
    store: Store, benchmark: Benchmark, taskset_id: str, person: str, since: datetime
) -> list[PersonResult]:
    """Return people's runs with a score on an offered taskset that began at `since` or later, oldest first."""
    people = [
        PersonResult(
            task=slug,
            person=person,
            reward=run["reward"],
            seconds=run["seconds"],
            collected="dashboard",
            instructions=INSTRUCTIONS,
            at=datetime.fromisoformat(run["started_at"]),
            version=benchmark.package.version,
            trace_id=run["trace_id"],
        )
        for slug, runs in scores(store, LOCAL_TEAM, taskset_id).items()
        for run in runs
        if run["reward"] is not None and run["seconds"] is not None
    ]
    return sorted((result for result in people if result.at >= since), key=lambda result: result.at)


def _have_build(store: Store, home: Path, name: str, source: Path) -> None:
    """Register an installed environment as a build; its folder is linked, not copied."""
    folder = home / "environments" / f"installed-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "source"
    if link.is_symlink() and link.readlink() != source.parent:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(source.parent)
    environment = Environments(store, LOCAL_TEAM).find_or_create(name, None)
    newest = store.row(newest_build(plain(environment)))
    if newest is not None and newest.folder == str(folder):
        return
    manifest = {"name": name, "entry": source.name}
    row = {
        "id": new_id(),
        "team_id": LOCAL_TEAM,
        "environment_id": plain(environment),
        "status": SUCCEEDED,
        "version": 1 if newest is None else newest.version + 1,
        "manifest": manifest,
        "folder": str(folder),
        "options": {"name": name},
        "created_at": datetime.now(UTC),
    }
    store.write(sa.insert(tables.builds).values(**row))
