"""Opening hours: parsing, and the slots that are free in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

DAY = 24 * 60
_SPAN = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, order=True)
class Span:
    """Minutes of a day, from `start` up to and without `end`."""

    start: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.start // 60:02d}:{self.start % 60:02d}-{self.end // 60:02d}:{self.end % 60:02d}"
        )


def parse(text: str) -> list[Span]:
    """Return the spans of a text such as `09:00-12:30, 14:00-18:00`, in their order; raises `ValueError` for others."""
    spans = []
    for part in text.split(","):
        match = _SPAN.match(part.strip())
        if match is None:
            raise ValueError(f"no span of time: {part.strip()!r}")
        hour, minute, end_hour, end_minute = map(int, match.groups())
        spans.append(Span(hour * 60 + minute, end_hour * 60 + end_minute))
    return spans


def merged(spans: list[Span]) -> list[Span]:
    """Return the spans in order, those that overlap or touch as one."""
    united: list[Span] = []
    for span in sorted(spans):
        if united and span.start <= united[-1].end:
            united[-1] = Span(united[-1].start, span.end)
        else:
            united.append(span)
    return united


def without(spans: list[Span], taken: list[Span]) -> list[Span]:
    """Return what is left of the spans where the taken ones are cut out."""
    left = []
    for span in merged(spans):
        start = span.start
        for cut in merged(taken):
            if cut.start > start:
                left.append(Span(start, cut.start))
            start = cut.end
        if start < span.end:
            left.append(Span(start, span.end))
    return left


def slots(opening: str, taken: str, minutes: int) -> list[str]:
    """Return the slots of a length that are free: each begins where the one before ended, from the start of a free span."""
    free = without(parse(opening), parse(taken))
    listed = []
    for span in free:
        start = span.start
        while start + minutes < span.end:
            listed.append(str(Span(start, start + minutes)))
            start += minutes
    return listed
