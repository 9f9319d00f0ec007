"""Unmeasured runs of two sides of a comparison, and the test of whether their shares differ.

Means ignore unmeasured runs, and tasks that one side lacks. That is sound while they are missing at random; a side whose failing runs break their grader
gains by it. Runs missing at random have equal shares on both sides, apart from chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from hud.eval.results.paired_differences import SIGNIFICANCE, Rewards


@dataclass(frozen=True)
class UnmeasuredRuns:
    """Numbers of runs without a reward, and of all runs, of the head and of the candidate."""

    head: int
    head_runs: int
    candidate: int
    candidate_runs: int

    @classmethod
    def of(cls, head: Rewards, candidate: Rewards) -> UnmeasuredRuns:
        """Count the runs of both sides. Runs of a task that one side lacks count there as unmeasured.

        A side lacks what the other has beyond it, up to its own number of runs of a task: a side with four runs of each
        task lacks none beside one with eight.
        """
        first, second = (
            [
                reward
                for slug in head.keys() | candidate.keys()
                for reward in _padded(side.get(slug, ()), min(group, len(other.get(slug, ()))))
            ]
            for side, other, group in (
                (head, candidate, _group(head)),
                (candidate, head, _group(candidate)),
            )
        )
        return cls(first.count(None), len(first), second.count(None), len(second))

    @property
    def p_value(self) -> float:
        """p-value of Fisher's exact test that both sides lose runs equally often; 1.0 without runs."""
        missing, total = self.head + self.candidate, self.head_runs + self.candidate_runs
        counts = range(max(0, missing - self.candidate_runs), min(missing, self.head_runs) + 1)
        ways = [
            comb(self.head_runs, count) * comb(self.candidate_runs, missing - count)
            for count in counts
        ]
        measured = ways[self.head - counts.start]
        return sum(count for count in ways if count <= measured) / comb(total, missing)

    @property
    def differ(self) -> bool:
        """True if the shares differ at the level of 5%: the rewards of the measured runs cannot be compared."""
        return self.p_value <= SIGNIFICANCE

    @property
    def counted(self) -> str:
        """The counts of both sides, as text."""
        return (
            f"{self.candidate} of {self.candidate_runs} runs of the candidate and {self.head} of {self.head_runs} of the head "
            "have no reward"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and the p-value as plain data."""
        return {**asdict(self), "p_value": self.p_value}


def _group(side: Rewards) -> int:
    """Return a side's number of runs of a task: the largest of all its tasks."""
    return max(map(len, side.values()), default=0)


def _padded(runs: Sequence[float | None], count: int) -> Sequence[float | None]:
    return [*runs, *[None] * (count - len(runs))]
