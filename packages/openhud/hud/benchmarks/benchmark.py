"""`Benchmark`: tasks that a package ships, by a name, in splits, with a reference agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hud import __version__
from hud.errors import NotFoundError, UsageError
from hud.plugs import OWN

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task
    from hud.eval import Taskset

Split = Literal["train", "held-out"]
SPLITS: tuple[Split, ...] = ("train", "held-out")


@dataclass(frozen=True)
class Package:
    """The distribution that ships a benchmark's tasks, at the one version that its figures hold for."""

    name: str
    version: str
    licence: str
    bare: bool = False
    """Install it without the dependencies that it declares."""
    beside: tuple[str, ...] = ()
    """Requirements of what is used of it, where it is installed bare."""

    @property
    def installed(self) -> str | None:
        """Version that is installed, None where it is not."""
        if self.name == OWN:  # A source tree that is run as it is has no metadata.
            return __version__
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return None

    @property
    def pin(self) -> str:
        """Requirement, as pip takes it."""
        return f"{self.name}=={self.version}"


OPENHUD = Package(OWN, __version__, "MIT")
"""The package of benchmarks that come with openhud itself."""


@dataclass(frozen=True)
class Reference:
    """A solver that anchors the scores of a benchmark while too few people did its tasks."""

    make: Callable[[], Agent]
    standing: float
    """Percentile of people that it is declared to have: 0 nothing, 1 an expert."""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. Looking at it loads no package; `tasks` does."""

    name: str
    summary: str
    package: Package
    sizes: Mapping[Split, int]
    """Number of tasks in each split; `train` may be empty."""
    make_tasks: Callable[[Split], list[Task]]
    make_oracle: Callable[[], Agent] | None = None
    """None where the package has no solutions."""
    needs: str = ""
    """Programs and settings that its environment needs, and where they come from."""
    novices: Mapping[str, Reference] = field(default_factory=dict)
    """Scripts that do the tasks less well than the oracle, with standings between 0 and 1."""

    @property
    def references(self) -> dict[str, Reference]:
        """Reference solvers by name: `nothing`, the novices, and `expert`, which is the oracle."""
        references = {"nothing": Reference(_nothing, 0.0), **self.novices}
        if self.make_oracle is not None:
            references["expert"] = Reference(self.oracle, 1.0)
        return references

    def tasks(self, split: str = "held-out") -> Taskset:
        """Return the tasks of a split, bound to their environment.

        Raises `UsageError` for an unknown or empty split, and where the package is not installed at its version.
        """
        from hud.eval import Taskset

        known_split = next((name for name in SPLITS if name == split), None)
        if known_split is None:
            raise NotFoundError(
                f"Benchmark {self.name!r} has no split {split!r}; there are {' and '.join(SPLITS)}."
            )
        if not self.sizes[known_split]:
            raise UsageError(
                f"Benchmark {self.name!r} has no tasks to train on: its {self.sizes['held-out']} tasks are held out."
            )
        self.check_installed()
        return Taskset(f"{self.name} {split}", self.make_tasks(known_split), benchmark=self.name)

    def oracle(self) -> Agent:
        """Return the agent that plays the package's own solutions; raises `UsageError` where it has none."""
        self.check_installed()
        if self.make_oracle is None:
            raise UsageError(
                f"Benchmark {self.name!r} has no oracle: its package has no solutions."
            )
        return self.make_oracle()

    def check_installed(self) -> None:
        """Raise `UsageError` where the package is missing, or is there in another version."""
        installed = self.package.installed
        if installed == self.package.version:
            return
        instead = "" if installed is None else f", not {installed}"
        raise UsageError(
            f"Benchmark {self.name!r} needs {self.package.name} {self.package.version}{instead}: "
            f"hud benchmarks install {self.name}"
        )


@dataclass(frozen=True)
class Family:
    """Benchmarks that join together, by one entry point of the group `hud.benchmarks`: a function that returns this."""

    benchmarks: Sequence[Benchmark]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by names that the package has and that are no benchmarks here."""
    baseline: Path | None = None
    """Shipped results of people and of reference solvers: a baseline file (`hud.benchmarks.baseline`)."""


def _nothing() -> Agent:
    from hud.agents.scripted import NOTHING

    return NOTHING
