"""Pacing of streams: tokens are sent at once while few streams are open, in larger pieces while many are.

Every piece costs the same whether it holds one token or twenty, and hundreds of streams of single tokens would
spend the machine on envelopes. A stream that rests loses nothing: the engine keeps what it drew meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 8
"""Open streams up to which every token is sent at once."""
SECONDS_EACH = 0.0004
"""Processor time of one piece, in seconds: envelope, socket and reader together."""
LONGEST_SECONDS = 0.25


class Pacing:
    """The streams that are open in this process."""

    def __init__(self) -> None:
        self.open = 0

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count one stream."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def rest(self) -> None:
        """Wait as long as there are others to be told first."""
        if self.open > AT_ONCE:
            await asyncio.sleep(min(self.open * SECONDS_EACH, LONGEST_SECONDS))
