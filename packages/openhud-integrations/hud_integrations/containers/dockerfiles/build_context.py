"""`BuildContext`: the folder of a build, less what `.dockerignore` leaves out."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import pathspec

from hud.errors import UsageError


class BuildContext:
    """Files that a Dockerfile can copy: a folder's, or those of an image, which leaves out none."""

    def __init__(self, folder: Path, *, of_an_image: bool = False) -> None:
        self.folder = folder.resolve()
        self._name = "image" if of_an_image else "build context"
        ignore = folder / ".dockerignore"
        read = ignore.is_file() and not of_an_image
        lines = ignore.read_text(encoding="utf-8").splitlines() if read else []
        self._ignored = pathspec.GitIgnoreSpec.from_lines(map(_anchored, lines))

    def digest(self) -> str:
        """Return a digest of names, modes and contents."""
        digest = hashlib.sha256()
        for path in self._below(self.folder):
            status = path.lstat()
            content = b""
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path).encode()
            elif stat.S_ISREG(status.st_mode):
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            name = path.relative_to(self.folder).as_posix()
            digest.update(f"{name}\0{status.st_mode:o}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def sources(self, pattern: str) -> list[Path]:
        """Return the paths of a `COPY` source, whose last parts may be patterns. Raises `UsageError` for none."""
        relative = pattern.lstrip("/") or "."
        if ".." in PurePosixPath(relative).parts:
            raise UsageError(f"COPY {pattern} leaves the {self._name}.")
        try:
            paths = [self.folder] if relative in (".", "./") else sorted(self.folder.glob(relative))
        except ValueError:  # A pattern that matches nothing, such as `**x`.
            paths = []
        paths = [path for path in paths if not self._is_ignored(path)]
        root = self.folder.resolve()
        if not paths or not all(path.resolve().is_relative_to(root) for path in paths):
            raise UsageError(f"COPY {pattern}: there is no such file in the {self._name}.")
        return paths

    def layer(self, sources: list[Path], target: PurePosixPath, mode: int | None, *, into: bool) -> IO[bytes]:  # fmt: skip
        """Return a layer that copies the sources: folders by their contents; `into`: files keep their names below `target`."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for source in sources:
                content = source.resolve()
                if content.is_dir():
                    for path in self._below(content):
                        _add(archive, path, target / path.relative_to(content).as_posix(), mode)
                else:
                    _add(archive, content, target / source.name if into else target, mode)
        stream.seek(0)
        return stream

    def _below(self, folder: Path) -> Iterator[Path]:
        for place, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted((*folders, *names)):
                path = Path(place) / name
                if not self._is_ignored(path):
                    yield path

    def _is_ignored(self, path: Path) -> bool:
        if path == self.folder:
            return False
        return self._ignored.match_file(path.relative_to(self.folder).as_posix())


def _add(archive: tarfile.TarFile, path: Path, target: PurePosixPath, mode: int | None) -> None:
    if target.name.startswith(".wh."):
        raise UsageError(f"The source of a COPY has {path.name}, a name that layers of images use.")
    member = archive.gettarinfo(str(path), str(target))
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise UsageError(f"The source of a COPY has {path.name}, which is no file, folder or link.")
    if member.islnk():
        member.type, member.linkname, member.size = tarfile.REGTYPE, "", path.stat().st_size
    member.mode = member.mode if mode is None else mode
    if member.isreg():
        with path.open("rb") as file:
            archive.addfile(member, file)
    else:
        archive.addfile(member)


def _anchored(line: str) -> str:
    """Return a line of `.dockerignore` as one of `.gitignore`: its patterns start at the context."""
    line = line.strip()
    negated, pattern = line.startswith("!"), line.removeprefix("!").lstrip("/")
    if not pattern or line.startswith("#"):
        return ""
    return f"{'!' if negated else ''}{'' if pattern.startswith('**') else '/'}{pattern}"
