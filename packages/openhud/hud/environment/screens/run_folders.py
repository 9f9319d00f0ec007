"""Temporary folders of runs, removed also after crashes.

The folder of a killed process is removed by the next process that creates one.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

_YOUNG_SECONDS = 2.0
"""Minimum age of an orphan, in seconds: a new folder may not be locked yet."""


@asynccontextmanager
async def run_folder(name: str, *, reached_by_others: bool = False) -> AsyncIterator[Path]:
    """Yield a folder with a `home` and a `tmp` for a sandbox, and remove it afterwards.

    With `reached_by_others` all parent folders are accessible to other users of this machine.
    """
    prefix = f"hud-{name}-"
    place = await asyncio.to_thread(_open_place) if reached_by_others else tempfile.gettempdir()
    await asyncio.to_thread(_sweep, place, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    # A lock until this process ends, released by the kernel also after a crash.
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()
        yield folder
    finally:
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        finally:
            os.close(held)


def _open_place() -> str:
    """Return the folder for temporary files, or `/tmp` if that one is inaccessible to others."""
    place = Path(tempfile.gettempdir())
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in (place, *place.parents))
    return str(place) if is_open else "/tmp"


def _sweep(place: str, prefix: str) -> None:
    """Remove this user's unlocked folders."""
    for folder in Path(place).glob(f"{prefix}*"):
        with suppress(OSError):
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(held)
                if status.st_uid == os.getuid() and time.time() - status.st_ctime > _YOUNG_SECONDS:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)
