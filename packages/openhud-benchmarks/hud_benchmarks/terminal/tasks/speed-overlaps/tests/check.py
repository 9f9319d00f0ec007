"""Runs the agent's program on small inputs, and on one of 200,000 trips, in a time."""

import random
from bisect import bisect_left, bisect_right
from pathlib import Path

from confined import hide_tests, output_of, write_reward

SECONDS = 20.0
"""Twice what the instruction allows: machines differ."""
Trip = tuple[str, int, int]


def small(draw: random.Random) -> list[Trip]:
    return [
        (draw.choice("abcd"), start, start + draw.randint(1, 9))
        for start in (draw.randrange(30) for _ in range(draw.randint(1, 40)))
    ]


def large(draw: random.Random) -> list[Trip]:
    """Trips of riders with as many trips as there are riders, in a week."""
    made = []
    for _ in range(200_000):
        start = draw.randrange(604_800)
        made.append((f"r{draw.randrange(400)}", start, start + draw.randint(1, 40_000)))
    return made


def slowly(trips: list[Trip]) -> list[int]:
    return [
        sum(other[0] != rider and other[1] < end and start < other[2] for other in trips)
        for rider, start, end in trips
    ]


def sampled(trips: list[Trip], places: list[int]) -> list[int]:
    """Return the counts of some trips of many."""
    by_rider: dict[str, list[Trip]] = {}
    for trip in trips:
        by_rider.setdefault(trip[0], []).append(trip)
    starts, ends = sorted(trip[1] for trip in trips), sorted(trip[2] for trip in trips)
    counts = []
    for rider, start, end in (trips[place] for place in places):
        own = sum(other[1] < end and start < other[2] for other in by_rider[rider])
        counts.append(bisect_left(starts, end) - bisect_right(ends, start) - own)
    return counts


def counts_of(trips: list[Trip], source: str, seconds: float) -> list[int] | None:
    text = "".join(f"{rider} {start} {end}\n" for rider, start, end in trips)
    command = ["/usr/bin/python3", "-E", "-s", "-B", "-c", source]
    answered = output_of(command, text, seconds)
    try:
        return None if answered is None else [int(word) for word in answered.split()]
    except ValueError:
        return None


def main() -> float:
    path, draw = Path("/app/overlaps.py"), random.Random()
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 100_000:
        return 0.0
    source = path.read_text(errors="replace")
    hide_tests()
    for trips in (small(draw) for _ in range(20)):
        if counts_of(trips, source, 10) != slowly(trips):
            return 0.0
    trips, places = large(draw), draw.sample(range(200_000), 2000)
    counts = counts_of(trips, source, SECONDS)
    if counts is None or len(counts) != len(trips):
        return 0.0
    return float([counts[place] for place in places] == sampled(trips, places))


write_reward(main())
