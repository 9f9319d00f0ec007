"""`PositionBias`: how often a judge prefers a place in its request, whichever run stands there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hud.eval.results.intervals import clustered_interval, with_interval


@dataclass
class PositionBias:
    """Wins by place over a judge's requests.

    Every set of runs is shown in an order and its reverse, so that without a preference for places each wins equally often.
    """

    wins: list[tuple[str, list[float]]] = field(default_factory=list)
    """Group and share of the win at each place, of each request with a best run; equals share it."""
    repeated: int = 0
    """Number of sets of runs that were shown in both orders."""
    agreeing: int = 0
    """Number of them whose best run is the same in both."""

    def add(self, group: str, values: Sequence[float]) -> None:
        """Count a request, with the value of the run at each place; one without a preference does not count."""
        best = max(values)
        winners = [value == best for value in values]
        if not all(winners):
            self.wins.append((group, [won / sum(winners) for won in winners]))

    def add_both(self, values: Sequence[float], reversed_values: Sequence[float]) -> None:
        """Count a set of runs with the values in an order, and those in the reverse order."""
        there = [place for place, value in enumerate(values) if value == max(values)]
        back = list(reversed_values)[::-1]
        self.repeated += 1
        self.agreeing += there == [place for place, value in enumerate(back) if value == max(back)]

    def lines(self) -> list[str]:
        """Return the findings as text: of the most frequent number of runs in a request."""
        if not self.wins:
            return []
        size, _ = Counter(len(shares) for _, shares in self.wins).most_common(1)[0]
        of_size = [(group, shares) for group, shares in self.wins if len(shares) == size]
        by_place = [
            sum(shares[place] for _, shares in of_size) / len(of_size) for place in range(size)
        ]
        first: dict[str, list[float]] = {}
        for group, shares in of_size:
            first.setdefault(group, []).append(shares[0])
        interval = clustered_interval(first.values())
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        shown = " ".join(f"{share:.2f}" for share in by_place)
        return [
            f"best by place  {shown}  (first {with_interval(by_place[0], low, high)} of {len(of_size):,}; without a preference {1 / size:.2f})",
            f"both orders    {self.agreeing:,} of {self.repeated:,} have the same best run",
        ]
