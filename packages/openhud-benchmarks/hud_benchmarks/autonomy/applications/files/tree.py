"""`Tree`: a folder of files as data, packed for a workspace and unpacked from one."""

from __future__ import annotations

import dataclasses
import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self

FOLDER_MODE, FILE_MODE = 0o755, 0o644
MODIFIED = 1_710_000_000
"""Time of modification of every seeded file, in seconds since 1970."""
_ARCHIVE = ".tar.gz"
_LARGEST = 1 << 22
"""Bytes of an archive's unpacked content that are read at most."""
_LARGEST_FOLDER = 1 << 26
"""Bytes of files that are read of a folder at most."""
_LONGEST_HEADER = 512
"""Bytes of an extended header that are read at most."""
_MOST_STREAMS = 64
"""Streams of one compressed file that are read."""
_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a link."""

    kind: str
    """`file`, `folder`, `link`, or another that no task asks for."""
    content: bytes = b""
    """Content of a file, target of a link."""
    mode: int | None = None
    """Permission bits; None: any."""

    def seen(self) -> tuple[object, ...]:
        """Return what two entries are compared by; an archive by its members, however it was packed."""
        if self.kind == "link":
            return self.kind, self.content
        return self.kind, self.mode, self.content


class Tree(dict[str, Entry]):
    """Entries by their path; the folders on the way to a path are entries, too."""

    def put(self, path: str, content: str | bytes, mode: int | None = None) -> None:
        """Add or replace a file."""
        data = content.encode() if isinstance(content, str) else content
        self._add(path, Entry("file", data, mode))

    def folder(self, path: str, mode: int | None = None) -> None:
        """Add a folder."""
        self._add(path, Entry("folder", mode=mode))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._add(path, Entry("link", target.encode()))

    def archive(self, path: str, members: Mapping[str, str]) -> None:
        """Add a `.tar.gz` of files."""
        inside = Tree()
        for name, content in members.items():
            inside.put(name, content)
        self.put(path, gzip.compress(inside.packed(), mtime=0))

    def move(self, old: str, new: str) -> None:
        """Move a file as it is."""
        self._add(new, self.pop(old))

    def remove(self, path: str) -> None:
        """Remove an entry with all below it."""
        for inner in [inner for inner in self if inner == path or inner.startswith(f"{path}/")]:
            del self[inner]

    def text(self, path: str) -> str:
        """Return the content of a file."""
        return self[path].content.decode()

    def begun(self) -> Self:
        """Return a copy in which every mode is a certain one: the state that a run begins with."""
        copy = type(self)()
        for path, entry in self.items():
            usual = FOLDER_MODE if entry.kind == "folder" else FILE_MODE
            copy[path] = dataclasses.replace(entry, mode=entry.mode or usual)
        return copy

    def below(self, folder: str) -> Self:
        """Return a copy that stands in a folder."""
        moved = type(self)({folder: Entry("folder", mode=FOLDER_MODE)})
        moved.update({f"{folder}/{path}": entry for path, entry in self.items()})
        return moved

    def states(self, like: Tree) -> dict[str, object]:
        """Return entries to compare by path; where `like` takes any mode, the mode is left out.

        An archive is compared by its members where `like` has one.
        """
        states: dict[str, object] = {}
        for path, entry in self.items():
            model = like.get(path)
            if model is not None and model.mode is None:
                entry = dataclasses.replace(entry, mode=None)
            is_archive = model is not None and path.endswith(_ARCHIVE)
            members = _members(entry.content) if is_archive else None
            states[path] = entry.seen() if members is None else (entry.mode, members)
        return states

    def packed(self) -> bytes:
        """Return the tree as an uncompressed tar archive."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path, entry in sorted(self.items()):
                member = tarfile.TarInfo(path)
                member.mtime = MODIFIED
                member.type = _TYPES[entry.kind]
                usual = FOLDER_MODE if entry.kind == "folder" else FILE_MODE
                member.mode = entry.mode or usual
                if entry.kind == "link":
                    member.linkname = entry.content.decode()
                member.size = len(entry.content) if entry.kind == "file" else 0
                archive.addfile(member, io.BytesIO(entry.content))
        return buffer.getvalue()

    @classmethod
    def unpacked(cls, data: bytes, most: int = _LARGEST_FOLDER) -> Self:
        """Return the tree of a tar archive; raises `tarfile.TarError` for anything else, and for more than `most` bytes."""
        tree = cls()
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=_Member) as archive:
                for member in archive:
                    path = str(PurePosixPath(member.name))
                    kind = _kind(member)
                    # The declared size: a sparse member has any, in a few bytes.
                    most -= member.size if kind == "file" else 0
                    if most < 0 or member.size < 0:
                        raise tarfile.TarError("its files are too large")
                    file = archive.extractfile(member) if kind == "file" else None
                    content = file.read() if file is not None else member.linkname.encode()
                    if path != ".":
                        tree[path] = Entry(kind, content, member.mode & 0o7777)
        except (
            ArithmeticError,
            EOFError,
            LookupError,
            OSError,
            RecursionError,
            ValueError,
        ) as error:
            raise tarfile.TarError(f"it is damaged: {error}") from error
        return tree

    def _add(self, path: str, entry: Entry) -> None:
        for folder in PurePosixPath(path).parents:
            if str(folder) != "." and str(folder) not in self:
                self[str(folder)] = Entry("folder")
        self[path] = entry


class _Member(tarfile.TarInfo):
    """Member of an archive whose extended headers are short.

    Some versions of Python read one in a time that grows with the square of its length (CVE-2024-6232).
    """

    def _proc_pax(self, archive: tarfile.TarFile) -> Any:
        if self.size > _LONGEST_HEADER:
            raise ValueError("an extended header is too long")
        return super()._proc_pax(archive)  # type: ignore[misc]


def _kind(member: tarfile.TarInfo) -> str:
    if member.isdir():
        return "folder"
    return "link" if member.issym() else "file" if member.isreg() else "other"


def _members(data: bytes) -> frozenset[tuple[str, bytes]] | None:
    """Return the files of a compressed archive with their contents; None where it is none, or is too large."""
    plain = _decompressed(data)
    if plain is None:
        return None
    try:
        tree = Tree.unpacked(plain, _LARGEST)
    except tarfile.TarError:
        return None
    files = {path: member for path, member in tree.items() if member.kind != "folder"}
    if any(member.kind != "file" for member in files.values()):
        return None  # A link's target is no content.
    return frozenset((path, member.content) for path, member in files.items())


def _decompressed(data: bytes) -> bytes | None:
    """Return the content of a gzip file; None where it is none, is larger than `_LARGEST`, or has too many streams.

    A file of empty streams takes long for its size.
    """
    plain = b""
    for _ in range(_MOST_STREAMS):
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            plain += stream.decompress(data, _LARGEST + 1 - len(plain))
        except zlib.error:
            return None
        if not stream.eof or len(plain) > _LARGEST:
            return None
        data = stream.unused_data.lstrip(b"\0")
        if not data:
            return plain
    return None
