"""Power losses, simulated for the files of a folder: content and names that were not flushed to the disk are lost."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

_DATABASE = ("hud.db", "hud.db-wal", "hud.db-shm")
"""SQLite flushes its own files, out of this module's sight."""


class PowerLoss:
    """Notes each flush of a file or folder of this process; `strike` then does what a power loss may do to `home`."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.home = home
        self._chance = random.Random(seed)
        self._flushed: dict[int, int] = {}
        self._named: dict[int, set[tuple[str, int]]] = {}
        flush = os.fsync

        def noted(descriptor: int) -> None:
            flush(descriptor)
            status = os.fstat(descriptor)
            self._flushed[status.st_ino] = status.st_size
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                with os.scandir(descriptor) as entries:
                    self._named[status.st_ino] = {(one.name, one.inode()) for one in entries}

        patch.setattr(os, "fsync", noted)

    def files(self) -> dict[str, bytes]:
        """Return the content of every file, by its path in `home`."""
        return {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in sorted(self.home.rglob("*"))
            if path.is_file() and path.name not in _DATABASE and path.suffix != ".lock"
        }

    def strike(self) -> list[str]:
        """Cut each file at a random byte of what was not flushed, remove those whose name was not; return their paths."""
        damaged = []
        for name in self.files():
            path = self.home / name
            status = path.stat()
            flushed = self._flushed.get(status.st_ino, 0)
            steps = [path, *list(path.parents)[: len(Path(name).parts) - 1]]
            if not all(self._has_name(step) for step in steps):
                path.unlink()
                damaged.append(name)
            elif flushed < status.st_size:
                os.truncate(path, self._chance.randrange(flushed, status.st_size))
                damaged.append(name)
        return damaged

    def _has_name(self, path: Path) -> bool:
        names = self._named.get(path.parent.stat().st_ino, set())
        return (path.name, path.lstat().st_ino) in names
