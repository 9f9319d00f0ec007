"""Pacing of streams: tokens are sent immediately while few streams are open, in larger chunks while many are.
The cost of a chunk hardly depends on its number of tokens, and hundreds of streams of single tokens would spend
the processor on overhead. A stream that waits loses no tokens: the engine buffers them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 8
"""Number of open streams up to which every token is sent immediately."""
SECONDS_EACH = 0.0004
"""Processor time of one chunk, in seconds: serialization, socket and reader."""
LONGEST_SECONDS = 0.25


class Pacing:
    """Open streams of this process."""

    def __init__(self) -> None:
        self.open = 0

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count one stream while the block runs."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def rest(self) -> None:
        """Wait for the processor time of one chunk of every other stream."""
        if self.open > AT_ONCE:
            await asyncio.sleep(min(self.open * SECONDS_EACH, LONGEST_SECONDS))
