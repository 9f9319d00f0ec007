"""Answers of providers that are held in memory until a turn is over, with a limit for each team."""

from __future__ import annotations

from collections import Counter

from hud_platform.access.limits import TooManyRequests

MOST_BYTES = 512 << 20
"""Largest size of a team's answers that are held at a time; a single answer has its own limit."""
_RETRY_SECONDS = 2.0


class HeldAnswers:
    """Sizes of the answers that are held, by team."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def answer(self, team: str) -> HeldAnswer:
        """Return the account of an answer that begins."""
        return HeldAnswer(self._held, team)


class HeldAnswer:
    """Account of one answer: bytes of what is kept until its end, and of its event that is being received."""

    def __init__(self, held: Counter[str], team: str) -> None:
        self._held = held
        self._team = team
        self._kept = 0
        self.partial = 0
        """Bytes of the event that is being received."""

    def receive(self, size: int) -> None:
        """Add bytes of an event that is being received. Raises `TooManyRequests`, as `keep` does."""
        self.partial += size
        self._add(size)

    def keep(self, size: int) -> None:
        """Add bytes that are kept. Raises `TooManyRequests` where the team's answers are too large together."""
        self._kept += size
        self._add(size)

    def event_ended(self) -> None:
        """Remove the bytes of the received event."""
        self._remove(self.partial)
        self.partial = 0

    def release(self) -> None:
        """Remove the answer: its response was sent, or has failed."""
        self._remove(self._kept + self.partial)
        self._kept = self.partial = 0

    def _add(self, size: int) -> None:
        self._held[self._team] += size
        if self._held[self._team] > MOST_BYTES:
            raise TooManyRequests(
                f"The answers of providers that your team is waiting for hold {MOST_BYTES >> 20} MiB together. Wait for some "
                "of them.",
                _RETRY_SECONDS,
            )

    def _remove(self, size: int) -> None:
        self._held[self._team] -= size
        if not self._held[self._team]:
            del self._held[self._team]
