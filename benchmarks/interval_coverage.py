"""Coverage of the 95% interval of a mean over simulated jobs; writes the table of docs/evaluation.md.

python benchmarks/interval_coverage.py [JOBS]       2,000 for each row, about a minute

Every job samples its tasks anew: the chance of success of a task is drawn from a beta distribution, and its runs succeed
independently with this chance. `bootstrap`: coverage of the percentile bootstrap over tasks, for comparison.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hud.eval.results.intervals import clustered_interval
from page_tables import write_table
from perf.sizes import SMALLEST, size

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evaluation.md"
RESAMPLES = size(1_000, 20)
Rewards = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Population:
    """Tasks whose chances of success are beta(a, b); `alike`: all tasks have the mean chance."""

    name: str
    a: float
    b: float
    alike: bool = False

    @property
    def mean(self) -> float:
        """Mean chance of success."""
        return self.a / (self.a + self.b)

    def job(self, rng: np.random.Generator, tasks: int, runs: int) -> Rewards:
        """Return the rewards of a job, (tasks, runs)."""
        chances = np.full(tasks, self.mean) if self.alike else rng.beta(self.a, self.b, size=tasks)
        return (rng.random((tasks, runs)) < chances[:, None]).astype(np.float64)


ALIKE = Population("all alike, 0.5", 1, 1, alike=True)
MIDDLE = Population("spread around 0.5", 2, 2)
BIMODAL = Population("mostly 1 or 0, mean 0.9", 0.27, 0.03)
RARE = Population("few that succeed, mean 0.03", 0.03, 0.97)
ROWS = (
    (ALIKE, 12, 40),
    *((population, tasks, 4) for tasks in (3, 5) for population in (ALIKE, MIDDLE)),
    (MIDDLE, 3, 40),
    (MIDDLE, 12, 4),
    (MIDDLE, 60, 4),
    (BIMODAL, 4, 40),
    (BIMODAL, 12, 40),
    (RARE, 8, 40),
    (RARE, 60, 40),
)


def bootstrap(rng: np.random.Generator, rewards: Rewards) -> tuple[float, float]:
    """Return the percentile bootstrap's interval over tasks."""
    means = rewards.mean(axis=1)
    chosen = rng.integers(0, len(means), size=(RESAMPLES, len(means)))
    low, high = np.quantile(means[chosen].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def row(population: Population, tasks: int, runs: int, jobs: int) -> str:
    """Return a row: coverage and mean width of the interval, and those of the bootstrap."""
    rng = np.random.default_rng(24)
    covered, widths = np.zeros(2), np.zeros(2)
    for _ in range(jobs):
        rewards = population.job(rng, tasks, runs)
        interval = clustered_interval(rewards.tolist())
        assert interval is not None
        for place, (low, high) in enumerate(
            ((interval.low, interval.high), bootstrap(rng, rewards))
        ):
            covered[place] += low <= population.mean <= high
            widths[place] += high - low
    cells = [f"{covered[place] / jobs:.2f} | {widths[place] / jobs:.3f}" for place in (0, 1)]
    return f"| {population.name} | {tasks} | {runs} | {' | '.join(cells)} |"


def main(jobs: int = size(2_000, 2)) -> None:
    """Print the table, and write it to the page at full size."""
    lines = [
        "| chances of success of the tasks | tasks | runs of each | coverage | width | bootstrap: coverage | width |",
        "|---|---|---|---|---|---|---|",
        *(row(*cells, jobs) for cells in ROWS),
    ]
    table = "\n".join(lines)
    print(table)
    if not SMALLEST:
        write_table(PAGE, table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
