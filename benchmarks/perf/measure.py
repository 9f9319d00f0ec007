"""How two sides are measured against one another: by turns in one run, after a warm-up, as medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import psutil


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = perf_counter()
    work()
    return perf_counter() - started


def processor_seconds(process: int | None = None) -> float:
    """Return the processor time of a process, by default this one, and its children so far."""
    here = psutil.Process(process)
    times = [one.cpu_times() for one in (here, *here.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def by_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each side once a round, one after another, and return what each gave.

    A busy machine then slows all of them. The first call of each is a warm-up and does not count.
    """
    for side in sides.values():
        side()
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def lowest(times: Mapping[int, Sequence[float]]) -> tuple[int, float]:
    """Return the setting with the lowest median, and that median."""
    return min(
        ((setting, statistics.median(one)) for setting, one in times.items()),
        key=lambda pair: pair[1],
    )


def highest(rates: Mapping[int, Sequence[float]]) -> tuple[int, float]:
    """Return the setting with the highest median, and that median."""
    return max(
        ((setting, statistics.median(one)) for setting, one in rates.items()),
        key=lambda pair: pair[1],
    )
