"""The prompt tokens of a step in which other sequences decode, so that a step holds these up for a set time at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import torch

from hud.engine.sample.scheduler import PASS_TOKENS

FIRST_TOKENS = 512
"""Prompt tokens before anything is measured."""
LEAST_TOKENS = 64
"""Fewest tokens of a step, so that prompts get on whatever the budget; fewer take hardly less time."""
SHARE = 0.9
"""Share of the budget that is used: a token takes longer the more tokens are before it."""
FALL = 0.5
"""Weight of a pass that is faster than the estimate; a slower one counts whole."""


class Clock(Protocol):
    """Time on a device."""

    def mark(self) -> Any:
        """Return the moment at which the device has done what was launched so far."""

    def seconds(self, begin: Any, end: Any) -> float | None:
        """Return the seconds between two marks; None while the device has not reached the second one."""


class PrefillBudget:
    """Number of prompt tokens for `seconds`, by a moving estimate of the seconds for each token."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        self._each: float | None = None
        """Estimated seconds for a token."""
        self._pending: deque[tuple[int, Any, Any]] = deque()
        """Tokens, begin and end of passes whose time is not known yet."""

    def tokens(self) -> int:
        """Return how many prompt tokens the next step may compute beside decoding sequences."""
        while self._pending:
            count, begin, end = self._pending[0]
            seconds = self.clock.seconds(begin, end)
            if seconds is None:
                break
            self._pending.popleft()
            self._learn(count, seconds)
        return self._allowed()

    @contextmanager
    def measured(self, count: int) -> Iterator[None]:
        """Measure a pass of `count` prompt tokens.

        One of more tokens than are allowed, while nothing decoded, is left out: its fixed costs are spread over so many.
        """
        fits, begin = count <= self._allowed(), self.clock.mark()
        yield
        if fits:
            self._pending.append((count, begin, self.clock.mark()))

    def _allowed(self) -> int:
        if self._each is None:
            return FIRST_TOKENS
        allowed = SHARE * self.seconds / max(self._each, 1e-9)
        return max(LEAST_TOKENS, min(PASS_TOKENS, int(allowed)))

    def _learn(self, count: int, seconds: float) -> None:
        token_seconds = seconds / max(count, LEAST_TOKENS)
        if self._each is None or token_seconds > self._each:
            self._each = token_seconds
        else:
            self._each += FALL * (token_seconds - self._each)


class HostClock:
    """Time of a device that has computed a pass when the call returns."""

    def mark(self) -> float:
        return perf_counter()

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin


class CudaClock:
    """Time of a GPU, by events in its stream: it computes after the host's call has returned."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        over = end.query()  # type: ignore[no-untyped-call]
        return float(begin.elapsed_time(end)) / 1000 if over else None


def device_clock(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
