"""File tracking of a workspace: for the record of each step, and for polling clients."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from hud.environment.workspace.files.changes import Changes
from hud.environment.workspace.sandbox.sandbox import Sandbox

_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Following:
    """Tracker of a sandbox's folder; the files at `begin` are the initial state."""

    def __init__(self, sandbox: Sandbox, skipped: Sequence[str]) -> None:
        self._sandbox = sandbox
        self._changes = Changes(skipped)

    async def begin(self) -> None:
        await asyncio.to_thread(self._changes.begin, self._sandbox.folder)

    async def changed(self) -> dict[str, Any]:
        """Return the changes since the last call, in `filetracking/1` format; {} without any."""
        return await asyncio.to_thread(self._changes.since_last, self._sandbox.folder)

    def files(self) -> list[dict[str, Any]]:
        """Return the files of the last snapshot: `{path, size, content_hash}`."""
        return [
            {"path": path, "size": seen.size, "content_hash": seen.digest}
            for path, seen in sorted(self._changes.files.items())
        ]

    async def read(self, path: str, most: int) -> bytes | None:
        """Return the contents of a file; None if it cannot be read, or is larger than `most` bytes."""
        return await asyncio.to_thread(_read, self._sandbox.folder, path, most)


def _read(folder: int, path: str, most: int) -> bytes | None:
    """Read a regular file without following links, which the agent may have made."""
    *above, name = PurePosixPath(path).parts
    opened: list[int] = []
    try:
        for part in above:
            folder = os.open(part, _OPENED | os.O_DIRECTORY, dir_fd=folder)
            opened.append(folder)
        descriptor = os.open(name, _OPENED, dir_fd=folder)
        opened.append(descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            content = file.read(most + 1)
        return content if len(content) <= most else None
    except OSError:
        return None  # It was deleted meanwhile.
    finally:
        for descriptor in opened:
            os.close(descriptor)
