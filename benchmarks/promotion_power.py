"""Error rate and power of the promotion gate over simulated comparisons; prints the table of docs/training.md.

python benchmarks/promotion_power.py [COMPARISONS]       500 for each cell, about two minutes

Each task has a chance of success drawn uniformly and five runs on either side. `skewed`: tasks change by exponential
amounts with a mean of zero and a deviation of 0.2.
"""

from __future__ import annotations

import sys

import numpy as np

from hud.eval.results.promotion import decide

TASKS = (6, 12, 20, 40, 80)
GAINS = (0.05, 0.1, 0.2)
RUNS = 5
Side = dict[str, list[float]]


def simulated(
    rng: np.random.Generator, tasks: int, gain: float = 0.0, skew: float = 0.0
) -> tuple[Side, Side]:
    """Return the rewards of five runs of each task by a head, and by a candidate whose chances of success differ."""
    chance = rng.beta(1, 1, size=tasks)
    other = np.clip(chance + gain + skew * (rng.exponential(1.0, tasks) - 1.0), 0, 1)

    def side(chances: np.ndarray) -> Side:
        return {
            f"t{place}": (rng.random(RUNS) < one).astype(float).tolist()
            for place, one in enumerate(chances)
        }

    return side(chance), side(other)


def verdicts(rng: np.random.Generator, tasks: int, count: int, **change: float) -> dict[str, float]:
    """Return the share of each verdict over `count` comparisons."""
    found = [decide(*simulated(rng, tasks, **change)).verdict for _ in range(count)]
    return {verdict: found.count(verdict) / count for verdict in ("better", "worse", "unclear")}


def main(count: int = 500) -> None:
    """Print a row for each number of tasks."""
    powers = "".join(f" | gain {gain:g}" for gain in GAINS)
    print(f"| tasks | null: promoted | better or worse{powers} | skewed: promoted | worse |")
    print("|---" * (5 + len(GAINS)) + "|")
    for tasks in TASKS:
        rng = np.random.default_rng(20)
        null = verdicts(rng, tasks, count)
        cells = [null["better"], null["better"] + null["worse"]]
        cells += [verdicts(rng, tasks, count, gain=gain)["better"] for gain in GAINS]
        skewed = verdicts(rng, tasks, count, skew=0.2)
        cells += [skewed["better"], skewed["worse"]]
        print(f"| {tasks} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
