"""Error rate and power of the promotion gate over simulated comparisons; prints the table of docs/promotion.md.

python benchmarks/promotion_power.py [COMPARISONS]       500 for each cell, about two minutes

Each task has a chance of success drawn uniformly and five runs on either side. `skewed`: tasks change by exponential
amounts with a mean of zero and a deviation of 0.2.

A second table is of 60 tasks with unmeasured runs: missing at random, or those of the candidate that fail. `measured runs
alone` is the share that the interval alone would promote.
"""

from __future__ import annotations

import sys

import numpy as np

from hud.eval.results.promotion_gate import decide

TASKS = (6, 12, 20, 40, 80)
GAINS = (0.05, 0.1, 0.2)
RUNS = 5
MISSING = (
    ("20% of both, at random", 0.2, 0.1, False),
    ("20% of both, at random", 0.2, 0.0, False),
    ("the candidate's failing runs", 1.0, 0.0, True),
    ("half of the candidate's failing runs", 0.5, 0.0, True),
    ("one in five of the candidate's failing runs", 0.2, 0.0, True),
    ("one in twenty of the candidate's failing runs", 0.05, 0.0, True),
)
Side = dict[str, list[float]]
Measured = dict[str, list[float | None]]


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


def missing(rng: np.random.Generator, side: Side, share: float, *, failing: bool) -> Measured:
    """Return a side without the rewards of a share of its runs; `failing`: of its failing runs."""
    return {
        slug: [
            None if rng.random() < share and not (failing and reward) else reward
            for reward in rewards
        ]
        for slug, rewards in side.items()
    }


def promoted_with_missing(
    rng: np.random.Generator, count: int, share: float, *, gain: float, failing: bool
) -> tuple[float, float]:
    """Return the share promoted by the gate, and the share promoted by the interval of the measured runs alone.

    `failing`: the candidate's failing runs are unmeasured; otherwise runs of both sides are missing at random.
    """
    gated = alone = 0
    for _ in range(count):
        head, candidate = simulated(rng, 60, gain=gain)
        before = missing(rng, head, 0.0 if failing else share, failing=False)
        decision = decide(before, missing(rng, candidate, share, failing=failing))
        overall = decision.pairing.overall
        gated += decision.promoted
        alone += overall is not None and overall.low is not None and overall.low > 0
    return gated / count, alone / count


def missing_table(count: int) -> None:
    """Print the shares promoted where runs are unmeasured."""
    print(
        "\n| unmeasured runs of 60 tasks | gain | measured runs alone | gate |\n|---|---|---|---|"
    )
    for name, share, gain, failing in MISSING:
        rng = np.random.default_rng(33)
        gated, alone = promoted_with_missing(rng, count, share, gain=gain, failing=failing)
        print(f"| {name} | {gain:g} | {alone:.1%} | {gated:.1%} |", flush=True)


def main(count: int = 500) -> None:
    """Print a row for each number of tasks, and the table of unmeasured runs."""
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
    missing_table(count)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
