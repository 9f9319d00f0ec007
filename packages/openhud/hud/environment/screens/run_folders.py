"""Temporary folders of runs, removed also after crashes.

The folder of a killed process is removed by the next process that creates one.
"""

from __future__ import annotations

import asyncio
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hud.processes.locked_folder import LockedFolder, remove_orphans


@asynccontextmanager
async def run_folder(name: str, *, reached_by_others: bool = False) -> AsyncIterator[Path]:
    """Yield a folder with a `home` and a `tmp` for a sandbox, and remove it afterwards.

    With `reached_by_others` all parent folders are accessible to other users of this machine.
    """
    place = await asyncio.to_thread(_open_place) if reached_by_others else None
    await asyncio.to_thread(remove_orphans, name, place)
    folder = LockedFolder(name, place)
    try:
        (folder.path / "home").mkdir()
        (folder.path / "tmp").mkdir()
        yield folder.path
    finally:
        await asyncio.to_thread(folder.remove)


def _open_place() -> str:
    """Return the folder for temporary files, or `/tmp` if that one is inaccessible to others."""
    place = Path(tempfile.gettempdir())
    is_open = all(folder.stat().st_mode & stat.S_IXOTH for folder in (place, *place.parents))
    return str(place) if is_open else "/tmp"
