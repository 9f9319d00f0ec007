"""Snapshot of a workspace's files, taken from outside the sandbox.

The files are untrusted: no link is followed, only regular files are opened, no other file system is entered, and sizes,
counts and time are bounded.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

MOST_FILES = 20_000
MOST_DEPTH = 40
TEXT_BYTES = 1 << 18
"""Largest file whose contents are kept for diffs, in bytes."""
HASHED_BYTES = 1 << 24
_SECONDS = 2.0
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_Mark = tuple[int, int, int, int]


@dataclass(frozen=True)
class Seen:
    """A file in a snapshot."""

    size: int
    mark: _Mark
    """Inode, size and times: equal marks imply equal contents, since ctime cannot be set."""
    digest: str | None
    """SHA-256 of the contents; None for files that are too large or unreadable."""
    content: bytes | None
    """Contents of a small file, else None."""


@dataclass(frozen=True)
class Look:
    """All files at one time, by path in the folder."""

    files: dict[str, Seen]
    seconds: float
    truncated: bool
    """True if a limit of time or size was reached."""


def look(folder: int, before: Look | None, skipped: Callable[[str], bool], kept_bytes: int) -> Look:
    """Return the files below the descriptor's folder, or `before` if it is gone.

    Unchanged files are reused from `before`. Names in `skipped` are omitted. `kept_bytes` limits the kept contents.
    """
    try:
        # A duplicated descriptor: the workspace may be closed meanwhile.
        top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return before or Look({}, 0.0, False)
    try:
        return _Walk(before.files if before else {}, skipped, kept_bytes).of(top)
    finally:
        os.close(top)


class _Walk:
    def __init__(
        self, previous: dict[str, Seen], skipped: Callable[[str], bool], kept_bytes: int
    ) -> None:
        self._known = previous
        self._skipped = skipped
        self._left = kept_bytes
        self._files: dict[str, Seen] = {}
        self._truncated = False
        self._started = time.monotonic()

    def of(self, folder: int) -> Look:
        self._walk(folder, "", os.fstat(folder).st_dev, 0)
        return Look(self._files, time.monotonic() - self._started, self._truncated)

    def _over(self) -> bool:
        if len(self._files) >= MOST_FILES or time.monotonic() - self._started > _SECONDS:
            self._truncated = True
        return self._truncated

    def _walk(self, folder: int, path: str, device: int, depth: int) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if self._over():
                    return
                if self._skipped(entry.name):
                    continue
                with suppress(OSError):  # It was deleted meanwhile, or is inaccessible.
                    status = entry.stat(follow_symlinks=False)
                    if status.st_dev != device:
                        continue
                    if stat.S_ISDIR(status.st_mode):
                        self._enter(folder, entry.name, path, device, depth)
                    elif stat.S_ISREG(status.st_mode):
                        name = f"{path}{_shown(entry.name)}"
                        self._files[name] = self._seen(folder, entry.name, name, status)

    def _enter(self, folder: int, name: str, path: str, device: int, depth: int) -> None:
        if depth >= MOST_DEPTH:
            self._truncated = True
            return
        inner = os.open(name, _OPENED | os.O_DIRECTORY, dir_fd=folder)
        try:
            self._walk(inner, f"{path}{_shown(name)}/", device, depth + 1)
        finally:
            os.close(inner)

    def _seen(self, folder: int, name: str, path: str, status: os.stat_result) -> Seen:
        mark = _mark(status)
        earlier = self._known.get(path)
        if earlier is not None and earlier.mark == mark:
            if earlier.content is not None:
                self._left -= len(earlier.content)
            return earlier
        if status.st_size > HASHED_BYTES:
            return Seen(status.st_size, mark, None, None)
        try:
            descriptor = os.open(name, _OPENED, dir_fd=folder)
        except OSError:
            return Seen(status.st_size, mark, None, None)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return Seen(status.st_size, mark, None, None)
            content = file.read(HASHED_BYTES)
        stored = len(content) <= min(TEXT_BYTES, self._left)
        self._left -= len(content) if stored else 0
        digest = hashlib.sha256(content).hexdigest()
        return Seen(len(content), mark, digest, content if stored else None)


def _mark(status: os.stat_result) -> _Mark:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _shown(name: str) -> str:
    """Return a name as valid Unicode."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
