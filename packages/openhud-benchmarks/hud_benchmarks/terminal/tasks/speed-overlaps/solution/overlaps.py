"""Reads trips (`rider start end`, whole seconds) and prints for each, in order, how many trips of other riders overlap it."""

import sys
from bisect import bisect_left, bisect_right


def main():
    trips, starts, ends, by_rider = [], [], [], {}
    for line in sys.stdin:
        rider, start, end = line.split()
        start, end = int(start), int(end)
        trips.append((rider, start, end))
        own = by_rider.setdefault(rider, ([], []))
        for held in (own, (starts, ends)):
            held[0].append(start)
            held[1].append(end)
    for held in (*by_rider.values(), (starts, ends)):
        held[0].sort()
        held[1].sort()

    def overlapping(sorted_starts, sorted_ends, start, end):
        # Trips that begin before the end, less those that are over at the start.
        return bisect_left(sorted_starts, end) - bisect_right(sorted_ends, start)

    print(
        "\n".join(
            str(overlapping(starts, ends, start, end) - overlapping(*by_rider[rider], start, end))
            for rider, start, end in trips
        )
    )


main()
