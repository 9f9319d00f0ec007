"""Admission of telemetry: what does not fit is refused with a time to retry, not queued in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import anyio

from hud.platform.serving.token_engine import OverloadedError

MOST_UPLOADS = 64
"""Uploads that are held at a time."""
MOST_BYTES = 256 << 20
"""Of them together, unpacked; one alone may be larger."""
WRITERS = 4
"""Uploads that are read and written at once: read, they are several times their size."""


class BusyError(OverloadedError):
    """Telemetry that there is no room for now. Clients repeat what was answered so, and give up at 429."""

    status = 503


class Intake:
    """The uploads of one platform that are on their way into the store."""

    def __init__(self) -> None:
        self.uploads = 0
        self.bytes = 0

    @cached_property
    def writers(self) -> anyio.CapacityLimiter:
        """Holds back uploads that have come in whole until it is their turn."""
        return anyio.CapacityLimiter(WRITERS)

    @contextmanager
    def upload(self) -> Iterator[Upload]:
        """An upload from its first byte until it is stored. Raises `BusyError` where there is no room."""
        if self.uploads >= MOST_UPLOADS:
            raise BusyError("Many uploads are on their way already; send this one again.", 1.0)
        self.uploads += 1
        upload = Upload(self)
        try:
            yield upload
        finally:
            self.uploads -= 1
            self.bytes -= upload.size


class Upload:
    """One upload, and how much of the room it takes."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.size = 0

    def grow(self, size: int) -> None:
        """Take room for bytes that came. Raises `BusyError` where others have it."""
        intake = self.intake
        self.size += size
        intake.bytes += size
        if intake.bytes > MOST_BYTES and intake.bytes > self.size:
            raise BusyError("The uploads on their way fill the memory; send this one again.", 1.0)
