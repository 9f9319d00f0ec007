"""`HeldAttempts`: the attempts that one worker holds, by where they stand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hud.fleet.attempts.attempt_recorder import AttemptRecorder

AHEAD_SECONDS = 0.5
"""Time within which rollouts that are taken ahead begin, if those that are played take as long as the ones before."""

MOST_AHEAD = 4
"""Most rollouts taken ahead, and most that wait to be brought, for each that may be played at a time."""


@dataclass
class Attempt:
    """One attempt at a rollout."""

    lease: dict[str, Any]
    """The rollout, as the platform gave it."""
    recorder: AttemptRecorder
    task: asyncio.Task[None] | None = None
    """The task that plays it; None: it was taken ahead."""
    first: bool = True
    """True while nothing of it was brought."""
    over: bool = False
    again: bool = False
    """Infrastructure broke it."""
    since: float = field(default_factory=time.monotonic)
    """Time at which it was taken, and later that at which it began."""

    @property
    def trace_id(self) -> str:
        """The rollout's id."""
        return str(self.lease["trace_id"])


class HeldAttempts:
    """Attempts that wait to be played, that are played, and that are over but not brought yet, each by trace.

    At most `most` are played at a time. Besides, rollouts may be taken ahead: as many as begin within `AHEAD_SECONDS`, by the
    time that rollouts took lately, and at most `MOST_AHEAD` times `most`. A worker whose rollouts are short has the next ones at hand, and takes several in one
    request; one whose rollouts are long takes none that another worker could play now.
    """

    def __init__(self, most: int, capacity: Mapping[str, Any]) -> None:
        self.most = most
        self.capacity = capacity
        self.waiting: dict[str, Attempt] = {}
        self.playing: dict[str, Attempt] = {}
        self.over: dict[str, Attempt] = {}
        self._seconds = math.inf
        """Moving average of the time that rollouts took."""

    def __len__(self) -> int:
        return len(self.waiting) + len(self.playing) + len(self.over)

    def all(self) -> list[Attempt]:
        """Return every attempt."""
        return [*self.waiting.values(), *self.playing.values(), *self.over.values()]

    def find(self, trace_id: str) -> Attempt | None:
        """Return the attempt at a rollout, or None."""
        return next(
            (
                some[trace_id]
                for some in (self.waiting, self.playing, self.over)
                if trace_id in some
            ),
            None,
        )

    def take(self, lease: dict[str, Any]) -> None:
        """Hold a rollout that the platform gave."""
        attempt = Attempt(lease, AttemptRecorder(lease["trace_id"]))
        self.waiting[attempt.trace_id] = attempt

    def next(self) -> Attempt | None:
        """Return the attempt to be played now, which has waited longest; None where none waits, or there is no room."""
        if not self.waiting or len(self.playing) >= self.most:
            return None
        trace_id, attempt = next(iter(self.waiting.items()))
        del self.waiting[trace_id]
        self.playing[trace_id] = attempt
        attempt.since = time.monotonic()
        return attempt

    def end(self, attempt: Attempt) -> None:
        """Note that an attempt is over."""
        del self.playing[attempt.trace_id]
        attempt.over = True
        took = time.monotonic() - attempt.since
        before = self._seconds
        self._seconds = took if math.isinf(before) else before + (took - before) / self.most
        self.over[attempt.trace_id] = attempt

    def drop(self, attempt: Attempt) -> None:
        """Hold an attempt no more."""
        for some in (self.waiting, self.playing, self.over):
            some.pop(attempt.trace_id, None)

    def wanted(self) -> tuple[int, int]:
        """Return how many rollouts to take now: those that there is room for, and those ahead. None: wait for an end.

        None is taken while `MOST_AHEAD` times as many as may be played wait to be brought.
        """
        ahead = min(
            MOST_AHEAD * self.most, int(self.most * AHEAD_SECONDS / max(self._seconds, 1e-3))
        )
        room = self.most - len(self.playing) - len(self.waiting)
        total = room + ahead
        enough = 4 * len(self.waiting) > ahead if self.waiting else room <= 0
        if enough or total <= 0 or len(self.over) >= MOST_AHEAD * self.most:
            return 0, 0
        return max(0, room), total - max(0, room)

    def left(self) -> dict[str, float]:
        """Return the amounts of the capacity that no rollout here has asked for."""
        amounts = {
            name: float(most)
            for name, most in self.capacity.items()
            if isinstance(most, int | float) and not isinstance(most, bool)
        }
        for attempt in (*self.waiting.values(), *self.playing.values()):
            for name, used in attempt.lease["needs"].items():
                if name in amounts:
                    amounts[name] -= used
        return amounts
