"""Baseline files: the results of people and of reference solvers on a benchmark's tasks, as JSON.

One file holds a family of benchmarks (the name up to a slash). Two are read together: the one that the family ships,
and this user's own (`$HUD_HOME/baselines/FAMILY.json`), which alone is written.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hud import settings
from hud.benchmarks.registry import shipped_baseline
from hud.durable_files import make_folder, open_lock, read_regular, write_file
from hud.errors import StoreError


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PersonResult(_Entry):
    """Result of one person's attempt at one task, and how it was collected."""

    task: str
    """Slug of the task."""
    person: str
    """Initials or an id of the person's own choice; drawn at random where none was chosen."""
    reward: float
    seconds: float = Field(ge=0)
    """From when the task was shown to its end."""
    collected: Literal["terminal", "dashboard"]
    instructions: str
    """Text that the person was given besides the task."""
    at: datetime
    version: str
    """Version of the benchmark's package."""
    trace_id: str


class ReferenceResult(_Entry):
    """Rewards of one reference solver, as they were measured."""

    reward: float | None = None
    """On each task that `rewards` does not name; None: those were not measured."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """By slug."""
    at: datetime
    version: str

    def on(self, task: str) -> float | None:
        """Return the reward on a task, where it was measured."""
        return self.rewards.get(task, self.reward)


class BaselineFile(_Entry):
    """Results on the tasks of a family of benchmarks."""

    references: dict[str, ReferenceResult] = Field(default_factory=dict)
    """By the name of the solver."""
    people: tuple[PersonResult, ...] = ()
    """In the order in which they were recorded."""

    def joined(self, other: BaselineFile) -> BaselineFile:
        """Return both files as one; what `other` has of references goes first."""
        merged = self
        for name, result in other.references.items():
            merged = merged.with_reference(name, result)
        return merged.with_people(*other.people)

    def with_people(self, *results: PersonResult) -> BaselineFile:
        """Return the file with further results; a run that it has already is not added again."""
        trace_ids = {result.trace_id for result in self.people}
        new = (result for result in results if result.trace_id not in trace_ids)
        return self.model_copy(update={"people": (*self.people, *new)})

    def with_reference(self, name: str, result: ReferenceResult) -> BaselineFile:
        """Return the file with rewards of a reference solver, over those that it had at the same version."""
        before = self.references.get(name)
        if before is not None and before.version == result.version:
            reward = before.reward if result.reward is None else result.reward
            rewards = {**before.rewards, **result.rewards}
            result = result.model_copy(update={"reward": reward, "rewards": rewards})
        return self.model_copy(update={"references": {**self.references, name: result}})


def family_of(benchmark: str) -> str:
    """Return the family of a benchmark, by its name."""
    return benchmark.partition("/")[0]


def own_path(benchmark: str) -> Path:
    """Return the path of this user's own file."""
    return settings.load().home / "baselines" / f"{family_of(benchmark)}.json"


def baseline_file(benchmark: str) -> BaselineFile:
    """Return what is known of a benchmark: shipped, and recorded by this user.

    Raises `StoreError` for a file that cannot be read.
    """
    path = shipped_baseline(benchmark)
    shipped = BaselineFile() if path is None else _read(path)
    return shipped.joined(_read(own_path(benchmark)))


def change(benchmark: str, changed: Callable[[BaselineFile], BaselineFile]) -> Path:
    """Change this user's own file, one process at a time; returns its path. What it held is never lost to a crash."""
    path = own_path(benchmark)
    make_folder(path.parent)
    with open_lock(path.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written = changed(_read(path)).model_dump_json(indent=1, exclude_defaults=True)
        write_file(path, f"{written}\n".encode())
    return path


def _read(path: Path) -> BaselineFile:
    content = read_regular(path)
    if content is None:
        return BaselineFile()
    try:
        return BaselineFile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise StoreError(
            f"Baseline file {path} cannot be read: {place}: {first['msg']}. Mend it, or move it away."
        ) from None
