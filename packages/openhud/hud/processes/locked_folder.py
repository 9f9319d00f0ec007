"""Temporary folders of processes that may be killed: the next process that creates one removes those that were left."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_YOUNG_SECONDS = 2.0
"""Minimum age of an orphan, in seconds: a new folder may not be locked yet."""


class LockedFolder:
    """A new folder `hud-NAME-...`, locked by this process until it is removed or the process ends, also by a crash."""

    def __init__(self, name: str, place: str | None = None) -> None:
        """Create it in the folder `place`, by default in that for temporary files."""
        self.path = Path(tempfile.mkdtemp(prefix=f"hud-{name}-", dir=place))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Delete it."""
        try:
            shutil.rmtree(self.path, ignore_errors=True)
        finally:
            os.close(self._lock)


def remove_orphans(name: str, place: str | None = None) -> None:
    """Delete this user's folders of a name whose processes have ended."""
    for folder in Path(place or tempfile.gettempdir()).glob(f"hud-{name}-*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(lock)
                if status.st_uid == os.getuid() and time.time() - status.st_ctime > _YOUNG_SECONDS:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
