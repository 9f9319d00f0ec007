"""Identity of files' contents, for caches of loaded files: a path alone names whatever was put there last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

Version = tuple[int, ...]
"""Device, inode, size, and times of a file: any write, or replacement, changes it."""


def versions(paths: Iterable[Path]) -> tuple[Version | None, ...]:
    """Return the version of each file; None: there is no such file. For files too large to be read for it."""
    return tuple(map(_version, paths))


def digests(paths: Iterable[Path]) -> tuple[str | None, ...]:
    """Return the SHA-256 of each file's content, read again after a change; None: there is no such file."""
    return tuple(_digest(path, _version(path)) for path in paths)


def _version(path: Path) -> Version | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    # The time of change, unlike that of modification, cannot be set back: archives and copies restore the latter.
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@lru_cache(maxsize=1024)
def _digest(path: Path, version: Version | None) -> str | None:
    if version is None:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
