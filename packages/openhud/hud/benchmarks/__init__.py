"""Benchmarks: tasks that packages ship, this one and others, played like any other.

    from hud.benchmarks import benchmark

    tasks = benchmark("reasoning-gym/chain_sum").tasks("train")

It knows which tasks a package ships, how they are split, and what its solutions are. Packages load with the tasks, not
with this module, and nothing is fetched from a network when tasks are played.
"""

from hud.benchmarks.benchmark import SPLITS, Benchmark, Family, Package, Reference, Split
from hud.benchmarks.registry import benchmark, benchmarks

__all__ = [
    "SPLITS",
    "Benchmark",
    "Family",
    "Package",
    "Reference",
    "Split",
    "benchmark",
    "benchmarks",
]
