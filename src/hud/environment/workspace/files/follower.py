"""Follows a workspace's files: for what is recorded of each step, and for clients that ask from time to time."""

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
    """One follower of a sandbox's folder; what is there at `begin` is nothing new."""

    def __init__(self, sandbox: Sandbox, skipped: Sequence[str]) -> None:
        self._sandbox = sandbox
        self._changes = Changes(skipped)

    async def begin(self) -> None:
        await asyncio.to_thread(self._changes.begin, self._sandbox.folder)

    async def changed(self) -> dict[str, Any]:
        """Return what changed since this was last asked, as `filetracking/1` has it; {} where nothing did."""
        return await asyncio.to_thread(self._changes.since_last, self._sandbox.folder)

    def files(self) -> list[dict[str, Any]]:
        """Return the files as they were last seen: `{path, size, content_hash}`."""
        return [
            {"path": path, "size": seen.size, "content_hash": seen.digest}
            for path, seen in sorted(self._changes.files.items())
        ]

    async def read(self, path: str, most: int) -> bytes | None:
        """Return what a file holds; None where it cannot be read, or holds more than `most` bytes."""
        return await asyncio.to_thread(_read, self._sandbox.folder, path, most)


def _read(folder: int, path: str, most: int) -> bytes | None:
    """Read a plain file; what is on the way is the agent's, so no link is followed."""
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
        return None  # It went away.
    finally:
        for descriptor in opened:
            os.close(descriptor)
