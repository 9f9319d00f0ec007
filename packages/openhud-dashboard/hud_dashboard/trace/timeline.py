"""Timeline of a trace: times of agent, tools and environment, tokens of each turn, and failures.
Drawn as a fixed number of SVG paths, independent of the number of steps: 1,000 units wide, a lane for the agent, one
for tools and subagents, one for the environment with its start, and tokens below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hud_dashboard.trace.images import images
from hud_dashboard.trace.steps import is_failed
from hud_dashboard.trace.values import dict_of, moment_of, number_of

WIDTH = 1000.0
NARROWEST = 1.5
"""Minimum width of a mark in units, so that short steps are visible."""
LANES = {"agent": 0, "tool": 1, "subagent": 1}
LANE_HEIGHT = 9
LANE_STEP = 12
TOKENS_TOP = 40
TOKENS_HEIGHT = 26
HEIGHT = TOKENS_TOP + TOKENS_HEIGHT
MOST_SHOTS = 2_000
MOST_FAILURES = 500

View = dict[str, Any]


@dataclass
class Mark:
    """Step on the timeline."""

    step_id: int
    source: str
    start: datetime | None
    end: datetime | None
    prompt: int
    completion: int
    failed: bool
    shots: list[str]


def marks(steps: Iterable[tuple[int, dict[str, Any]]]) -> list[Mark]:
    """Return the timeline's data of each step."""
    listed = []
    for step_id, payload in steps:
        counts = dict_of(payload.get("usage"))
        source = payload.get("source")
        start, end = moment_of(payload.get("started_at")), moment_of(payload.get("ended_at"))
        listed.append(
            Mark(
                step_id,
                source if isinstance(source, str) else "system",
                start,
                end if end is None or start is None or end >= start else start,
                int(number_of(counts.get("prompt_tokens")) or 0),
                int(number_of(counts.get("completion_tokens")) or 0),
                is_failed(payload),
                [name for name, _ in images(payload)],
            )
        )
    return listed


def timeline(drawn: list[Mark], began: datetime | None = None) -> View:
    """Return the drawing, the positions of the steps on it, the failed steps, and the screenshots in order.

    `began`: start of the run. The time from there to the setup of the task is that of the environment's start.
    """
    start_seconds = _start_seconds(drawn, began)
    spans, seconds = _spans(drawn, start_seconds)
    lanes: dict[str, list[tuple[float, float]]] = {}
    if start_seconds and seconds:
        lanes["start"] = [(0.0, max(NARROWEST, start_seconds / seconds * WIDTH))]
    for mark, (start, width) in zip(drawn, spans, strict=True):
        kind = mark.source if mark.source in LANES else "environment"
        lanes.setdefault(kind, []).append((start, width))
        if mark.failed:
            lanes.setdefault(f"{kind} failed", []).append((start, width))
    most = max((mark.prompt + mark.completion for mark in drawn), default=0)
    shots = [(mark.step_id, name) for mark in drawn for name in mark.shots]
    return {
        "steps": len(drawn),
        "seconds": seconds,
        "start_seconds": start_seconds if seconds else 0.0,
        "timed": seconds is not None,
        "paths": [
            {"kind": kind, "path": _lane(LANES.get(kind.partition(" ")[0], 2), places)}
            for kind, places in sorted(lanes.items(), key=_over)
        ],
        "prompt": _bars(drawn, spans, most, "prompt"),
        "completion": _bars(drawn, spans, most, "completion"),
        "most_tokens": most,
        # In thousandths of the width, for scripts that search the step under the pointer.
        "places": [
            (mark.step_id, round(start + width / 2))
            for mark, (start, width) in zip(drawn, spans, strict=True)
        ],
        "failed": [mark.step_id for mark in drawn if mark.failed][:MOST_FAILURES],
        "shots": shots[:MOST_SHOTS],
        "more_shots": max(0, len(shots) - MOST_SHOTS),
        "height": HEIGHT,
    }


def _start_seconds(drawn: list[Mark], began: datetime | None) -> float:
    """Return the duration of the environment's start; 0.0 for an unknown one, and for a run that does not begin with a setup."""
    first = drawn[0] if drawn else None
    if began is None or first is None or first.source != "task" or first.start is None:
        return 0.0
    return max(0.0, (first.start - began).total_seconds())


def _spans(
    drawn: list[Mark], start_seconds: float
) -> tuple[list[tuple[float, float]], float | None]:
    """Return the start and the width of each step, and the total seconds: None without recorded times."""
    times = [moment for mark in drawn for moment in (mark.start, mark.end) if moment is not None]
    if times and drawn[0].start is not None:
        times.append(drawn[0].start - timedelta(seconds=start_seconds))
    first, last = (min(times), max(times)) if times else (None, None)
    untimed = any(mark.start is None for mark in drawn)
    if first is None or last is None or untimed or last <= first:
        width = WIDTH / max(1, len(drawn))
        return [(place * width, width * 0.8) for place in range(len(drawn))], None
    seconds = (last - first).total_seconds()
    spans = []
    for mark in drawn:
        assert mark.start is not None
        start = (mark.start - first).total_seconds() / seconds * WIDTH
        took = (
            0.0 if mark.end is None else (mark.end - mark.start).total_seconds() / seconds * WIDTH
        )
        width = max(NARROWEST, took)
        spans.append((min(start, WIDTH - width), width))
    return spans, seconds


def _over(lane: tuple[str, Any]) -> tuple[bool, bool, str]:
    """Return the drawing order: subagents over their tool calls, failures over all."""
    kind = lane[0]
    return kind.endswith(" failed"), kind.startswith("subagent"), kind


def _lane(lane: int, places: list[tuple[float, float]]) -> str:
    """Return the rectangles of a lane as one path; overlapping ones are merged."""
    top = lane * LANE_STEP + 1
    drawn: list[tuple[float, float]] = []
    for start, width in sorted(places):
        end = start + width
        if drawn and start <= drawn[-1][1] + 0.2:
            drawn[-1] = (drawn[-1][0], max(drawn[-1][1], end))
        else:
            drawn.append((start, end))
    return "".join(
        f"M{start:.1f} {top}h{end - start:.1f}v{LANE_HEIGHT}h-{end - start:.1f}z"
        for start, end in drawn
    )


def _bars(drawn: list[Mark], spans: list[tuple[float, float]], most: int, what: str) -> str:
    """Return the tokens of each turn as one path: prompt tokens, with completion tokens stacked on top."""
    if not most:
        return ""
    parts = []
    for mark, (start, width) in zip(drawn, spans, strict=True):
        low = 0 if what == "prompt" else mark.prompt
        count = mark.prompt if what == "prompt" else mark.completion
        if not count:
            continue
        height = max(0.6, count / most * TOKENS_HEIGHT)
        bottom = HEIGHT - low / most * TOKENS_HEIGHT
        wide = max(width, 2.0)
        parts.append(f"M{start:.1f} {bottom:.1f}v-{height:.1f}h{wide:.1f}v{height:.1f}z")
    return "".join(parts)
