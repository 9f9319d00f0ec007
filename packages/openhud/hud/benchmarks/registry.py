"""The registry of benchmarks: families join by entry points of the group `hud.benchmarks`."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FunctionType

from hud import plugs
from hud.benchmarks.benchmark import Benchmark, Family
from hud.errors import NotFoundError, UsageError
from hud.eval.tasksets.suggestions import did_you_mean

GROUP = "hud.benchmarks"


@functools.cache
def _families() -> dict[str, Family]:
    """Return the families by the name of their entry point."""
    return {name: _family(point) for name, point in plugs.plugs(GROUP).items()}


def _family(point: EntryPoint) -> Family:
    family = plugs.load(point, FunctionType)()
    if not isinstance(family, Family):
        raise UsageError(
            f"{GROUP} {point.name!r} ({point.value}) returned {type(family).__name__}; "
            "it must be a function that returns a hud.benchmarks.Family."
        )
    return family


@functools.cache
def _by_name() -> dict[str, Benchmark]:
    families = _families().values()
    return {member.name: member for family in families for member in family.benchmarks}


def benchmarks() -> list[Benchmark]:
    """Return every benchmark, whether its package is installed or not."""
    return list(_by_name().values())


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name; raises `NotFoundError`."""
    if name in _by_name():
        return _by_name()[name]
    for family in _families().values():
        if name in family.left_out:
            raise NotFoundError(f"{name} is left out: {family.left_out[name]}.")
    raise NotFoundError(
        f"There is no benchmark {name!r}{did_you_mean(name, _by_name())} All of them: hud eval --benchmark list"
    )


def shipped_baseline(name: str) -> Path | None:
    """Return the baseline file that a benchmark's family ships; None for a family without one, or an unknown name."""
    for family in _families().values():
        if any(member.name == name for member in family.benchmarks):
            return family.baseline
    return None
