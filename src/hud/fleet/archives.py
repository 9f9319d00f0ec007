"""Archives from strangers, unpacked so that nothing lands outside its folder and nothing fills memory or disk.

`tarfile` reads the headers; what is written is written here. Its own `data` filter is not enough: releases of
Python that are still in use can be led out of the folder by links whose resolved names are too long to resolve.
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
"""Of one name; deeper folders could not even be removed."""
_MOST_NAME = 1024
"""Characters of one name."""
_LARGEST_READ = 1 << 20
"""Files are copied in smaller pieces than this: whoever reads more at once reads a header that is none."""
_BLOCK = 512
_EXTENSION_BYTES = 512
"""Bytes of extension headers beyond one block, for each member that an archive may hold. `tarfile` keeps them parsed."""


def unpack(
    archive: Path, folder: Path, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES
) -> int:
    """Unpack a gzip-compressed tar into a new folder; returns how many members it held.

    Raises `UsageError`, and leaves no folder, for members outside of it, links out of it, devices and pipes, and
    for more files or bytes than allowed, whatever the archive says of itself. Links that lead nowhere are left out.
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
        # A broken archive breaks `tarfile` and `zlib` in many ways, and none of them is ours.
        raise UsageError(f"The archive cannot be unpacked: {_reason(error)}.") from error
    return unpacking.members


class _Headers(gzip.GzipFile):
    """A decompressed archive whose headers may not be larger than headers are."""

    def __init__(self, archive: Path, most_files: int) -> None:
        super().__init__(archive, "rb")
        self._left = _LARGEST_READ + _EXTENSION_BYTES * most_files
        self._content = False

    @contextmanager
    def content(self) -> Iterator[None]:
        """Within it, files are copied and headers are not read."""
        self._content = True
        yield
        self._content = False

    def read(self, size: int | None = -1) -> bytes:
        """Read a piece; refuses pieces that only a header made up to fill memory asks for."""
        if size is None or not 0 <= size <= _LARGEST_READ:
            raise UsageError("The archive holds a header that is larger than headers are.")
        if size > _BLOCK and not self._content:
            self._left -= size
            if self._left < 0:
                raise UsageError("The headers of the archive are larger than headers are.")
        return super().read(size)


@dataclass
class _Unpacking:
    """One archive on its way into one folder."""

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
        """Write one member. No link exists until all are written, so nothing is written through one."""
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
        """Make the symbolic links, and take away those that lead nowhere once all are there."""
        places = {path for path, _ in self._links}
        for path, target in self._links:
            if not places.isdisjoint(path.parents):
                raise _refusal(self._name(path), "which lies beyond a link")
            inside = os.path.normpath(path.parent.relative_to(self.folder) / target)
            if os.path.isabs(target) or PurePosixPath(inside).parts[:1] == ("..",):
                raise self._leaves(path, target)
            self._make_folder(path.parent)
            path.symlink_to(target)
        root = self.folder.resolve()
        for path, target in self._links:
            try:
                # Strict: a name that cannot be resolved to its end is no proof of staying inside.
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
        """Make a folder and those above it, and count the new ones."""
        if path in self._folders:
            return
        self._make_folder(path.parent)
        self._count(1)
        path.mkdir(exist_ok=True)
        self._folders.add(path)

    def _place(self, name: str) -> Path:
        """Return where a member goes."""
        parts = [part for part in PurePosixPath(name).parts if part != "."]
        if name.startswith("/") or ".." in parts:
            raise _refusal(name, "which is outside of it")
        if len(parts) > _MOST_PARTS:
            raise _refusal(name, f"which is more than {_MOST_PARTS} folders deep")
        if len(name) > _MOST_NAME:
            raise _refusal(name, f"whose name is longer than {_MOST_NAME:,} characters")
        if not is_text(name):
            raise _refusal(name, "whose name is no UTF-8 text")
        return self.folder.joinpath(*parts)

    def _copy(self, member: tarfile.TarInfo, path: Path) -> None:
        """Write another name of an earlier file: a copy, so that no two files are one."""
        earlier = self._place(member.linkname)
        if not earlier.is_file():
            link = f"a link to {member.linkname!r}, which is no earlier file of it"
            raise _refusal(member.name, link)
        status = earlier.stat()
        with earlier.open("rb") as source:
            self._write(path, source, status.st_size, executable=bool(status.st_mode & 0o100))

    def _write(self, path: Path, source: IO[bytes], size: int, *, executable: bool) -> None:
        # What the archive holds, not what it says: a file is never longer than its header tells.
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
        return error.strerror  # Without the name: where the server keeps it is its own affair.
    return str(error) or type(error).__name__
