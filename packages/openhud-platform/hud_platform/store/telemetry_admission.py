"""Admission of telemetry: uploads beyond the limits are refused with a time to retry, not queued in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import anyio

from hud.errors import OverloadedError

MOST_UPLOADS = 64
"""Maximum number of concurrent uploads."""
MOST_BYTES = 256 << 20
"""Maximum total size of concurrent uploads in bytes, unpacked; a single one may be larger."""
WRITERS = 4
"""Uploads that are parsed and written concurrently: parsed, they take several times their size."""


class BusyError(OverloadedError):
    """No room for an upload now: status 503, after which clients retry (after 429 they do not)."""

    status = 503


class Intake:
    """Uploads in progress of one platform."""

    def __init__(self) -> None:
        self.uploads = 0
        self.bytes = 0

    @cached_property
    def writers(self) -> anyio.CapacityLimiter:
        """Limiter of concurrent writers; received uploads wait for it."""
        return anyio.CapacityLimiter(WRITERS)

    @contextmanager
    def upload(self) -> Iterator[Upload]:
        """Admit an upload until the end of the block. Raises `BusyError` if there is no room."""
        if self.uploads >= MOST_UPLOADS:
            raise BusyError("Too many uploads are in progress; send this one again.", 1.0)
        self.uploads += 1
        upload = Upload(self)
        try:
            yield upload
        finally:
            self.uploads -= 1
            self.bytes -= upload.size


class Upload:
    """An upload, with the memory that it uses."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.size = 0

    def grow(self, size: int) -> None:
        """Reserve memory for received bytes. Raises `BusyError` if other uploads use it."""
        intake = self.intake
        self.size += size
        intake.bytes += size
        if intake.bytes > MOST_BYTES and intake.bytes > self.size:
            raise BusyError("The uploads in progress fill the memory; send this one again.", 1.0)
