"""The benchmarks, by name."""

from __future__ import annotations

import functools

from hud.benchmarks import autonomy, bfcl, miniwob, reasoning_gym, sheetbench, tau2
from hud.benchmarks.benchmark import Benchmark
from hud.errors import NotFoundError
from hud.eval.tasksets.suggestions import did_you_mean


@functools.cache
def _known() -> dict[str, Benchmark]:
    found = [
        *autonomy.benchmarks(),
        *bfcl.benchmarks(),
        *miniwob.benchmarks(),
        *reasoning_gym.benchmarks(),
        *sheetbench.benchmarks(),
        *tau2.benchmarks(),
    ]
    return {benchmark.name: benchmark for benchmark in found}


def benchmarks() -> list[Benchmark]:
    """Return every benchmark, whether its package is installed or not."""
    return list(_known().values())


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name; raises `NotFoundError`."""
    found = _known().get(name)
    if found is not None:
        return found
    family, _, member = name.partition("/")
    if family == "reasoning-gym" and member in reasoning_gym.LEFT_OUT:
        raise NotFoundError(f"{name} is left out: {reasoning_gym.LEFT_OUT[member]}.")
    raise NotFoundError(
        f"There is no benchmark {name!r}{did_you_mean(name, _known())} All of them: hud eval --benchmark list"
    )
