"""Safe unpacking of untrusted archives: no member is written outside the folder, and memory and disk use are bounded.
`tarfile` reads the headers; this module writes the members. The `data` filter of `tarfile` is not sufficient: in
supported releases of Python, links whose names are too long to resolve can point out of the folder.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from hud.errors import UsageError
from hud.trace.json_values import is_text

MOST_FILES = 20_000
MOST_BYTES = 2 << 30
_MOST_PARTS = 64
"""Maximum number of path components of a name; deeper folders could not be removed."""
_MOST_NAME = 1024
"""Maximum length of a name, in characters."""
_LARGEST_READ = 1 << 20
"""Maximum size of one read. Files are copied in smaller pieces, so a larger read is due to an invalid header."""
_BLOCK = 512
_EXTENSION_BYTES = 512
"""Allowed bytes of extension headers for each member of an archive. `tarfile` holds parsed headers in memory."""


def unpack(
    archive: Path, folder: Path, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES
) -> int:
    """Unpack a gzip-compressed tar into a new folder; returns the number of members.
    Raises `UsageError`, and leaves no folder, for members outside of it, links out of it, devices and pipes, and
    for more files or bytes than allowed. Sizes are measured, not taken from headers. Dangling links are omitted.
    """
    folder.mkdir(parents=True)
    unpacking = _Unpacking(folder, most_files, most_bytes)
    try:
        with (
            _Headers(archive, most_files) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            for member in tar:
                with stream.content():
                    unpacking.take(tar, member)
        unpacking.make_links()
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, UsageError) or not isinstance(error, Exception):
            raise
        # A damaged archive raises many exception types in `tarfile` and `zlib`; each is the client's error.
        raise UsageError(f"The archive cannot be unpacked: {_reason(error)}.") from error
    return unpacking.members


class _Headers(gzip.GzipFile):
    """Decompressed archive with a limit for the size of its headers."""

    def __init__(self, archive: Path, most_files: int) -> None:
        super().__init__(archive, "rb")
        self._left = _LARGEST_READ + _EXTENSION_BYTES * most_files
        self._content = False

    @contextmanager
    def content(self) -> Iterator[None]:
        """Mark reads inside the block as file content, not headers."""
        self._content = True
        yield
        self._content = False

    def read(self, size: int | None = -1) -> bytes:
        """Read a piece. Raises `UsageError` for sizes that only a malicious header requests."""
        if size is None or not 0 <= size <= _LARGEST_READ:
            raise UsageError("The archive holds an oversized header.")
        if size > _BLOCK and not self._content:
            self._left -= size
            if self._left < 0:
                raise UsageError("The headers of the archive are too large.")
        return super().read(size)


@dataclass
class _Unpacking:
    """State of unpacking one archive into one folder."""

    folder: Path
    most_files: int
    most_bytes: int
    members: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        self._links: list[tuple[Path, str]] = []
        self._made = 0
        self._folders = {self.folder}

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write one member. Links are made after all members, so no file is written through a link."""
        self.members += 1
        path = self._place(member.name)
        if member.isdir():
            self._count(0)
            self._make_folder(path)
            return
        self._count(1)
        if member.issym():
            self._links.append((path, member.linkname))
        elif member.isreg():
            source = tar.extractfile(member)
            assert source is not None
            self._write(path, source, member.size, executable=bool(member.mode & 0o100))
        elif member.islnk():
            self._copy(member, path)
        else:
            raise _refusal(member.name, "which is neither file, folder nor link")

    def make_links(self) -> None:
        """Make the symbolic links, then remove dangling ones."""
        places = {path for path, _ in self._links}
        for path, target in self._links:
            if not places.isdisjoint(path.parents):
                raise _refusal(self._name(path), "whose path passes through a link")
            inside = os.path.normpath(path.parent.relative_to(self.folder) / target)
            if os.path.isabs(target) or PurePosixPath(inside).parts[:1] == ("..",):
                raise self._leaves(path, target)
            self._make_folder(path.parent)
            path.symlink_to(target)
        root = self.folder.resolve()
        for path, target in self._links:
            try:
                # Strict: a name that cannot be resolved completely might lead outside.
                end = path.resolve(strict=True)
            except (OSError, RuntimeError):
                path.unlink()
                continue
            if not end.is_relative_to(root):
                raise self._leaves(path, target)

    def _count(self, made: int) -> None:
        self._made += made
        if max(self._made, self.members) > self.most_files:
            raise UsageError(f"The archive holds more than {self.most_files:,} files and folders.")

    def _make_folder(self, path: Path) -> None:
        """Make a folder with its parents, and count the new ones."""
        if path in self._folders:
            return
        self._make_folder(path.parent)
        self._count(1)
        path.mkdir(exist_ok=True)
        self._folders.add(path)

    def _place(self, name: str) -> Path:
        """Return the path of a member. Raises `UsageError` for an invalid name."""
        parts = [part for part in PurePosixPath(name).parts if part != "."]
        if name.startswith("/") or ".." in parts:
            raise _refusal(name, "which is outside of it")
        if len(parts) > _MOST_PARTS:
            raise _refusal(name, f"which is more than {_MOST_PARTS} folders deep")
        if len(name) > _MOST_NAME:
            raise _refusal(name, f"whose name is longer than {_MOST_NAME:,} characters")
        if not is_text(name):
            raise _refusal(name, "whose name is not UTF-8 text")
        return self.folder.joinpath(*parts)

    def _copy(self, member: tarfile.TarInfo, path: Path) -> None:
        """Write a hard link as a copy of the earlier file, so that files share no storage."""
        earlier = self._place(member.linkname)
        if not earlier.is_file():
            link = f"a link to {member.linkname!r}, which is not an earlier file of it"
            raise _refusal(member.name, link)
        status = earlier.stat()
        with earlier.open("rb") as source:
            self._write(path, source, status.st_size, executable=bool(status.st_mode & 0o100))

    def _write(self, path: Path, source: IO[bytes], size: int, *, executable: bool) -> None:
        # Measured bytes, not the header's size: a file is never longer than its header states.
        self.size += max(size, 0)
        if self.size > self.most_bytes:
            raise UsageError(f"The archive holds more than {self.most_bytes >> 20:,} MiB.")
        self._make_folder(path.parent)
        if path.exists():
            path.unlink()
        with path.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 16)
        path.chmod(0o755 if executable else 0o644)

    def _leaves(self, path: Path, target: str) -> UsageError:
        return _refusal(self._name(path), f"a link to {target!r} outside of it")

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _refusal(name: str, fault: str) -> UsageError:
    shown = repr(name) if len(name) <= 80 else f"{name[:80]!r}..."
    return UsageError(f"The archive holds {shown}, {fault}.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # Without the file name, which is a path of the server.
    return str(error) or type(error).__name__
