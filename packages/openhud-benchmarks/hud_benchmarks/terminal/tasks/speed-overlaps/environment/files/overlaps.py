"""Reads trips (`rider start end`, whole seconds) and prints for each, in order, how many trips of other riders overlap it."""

import sys


def main():
    trips = []
    for line in sys.stdin:
        rider, start, end = line.split()
        trips.append((rider, int(start), int(end)))
    for rider, start, end in trips:
        count = 0
        for other, other_start, other_end in trips:
            if other != rider and other_start < end and start < other_end:
                count += 1
        print(count)


main()
