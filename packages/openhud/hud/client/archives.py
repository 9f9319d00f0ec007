"""Archives of source folders: selection of files, and their size."""

from __future__ import annotations

import gzip
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pathspec

from hud.errors import NotFoundError, UsageError

DEFAULT_EXCLUDES = (
    ".git",
    ".hud",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "node_modules",
    ".DS_Store",
    "dist",
    "build",
    "*.egg-info",
)
SECRETS = (".env", ".env.*", "*.env")
"""Always excluded, regardless of ignore files."""
IGNORE_FILES = (".gitignore", ".dockerignore")


@dataclass(frozen=True)
class Packed:
    """Contents of an archive."""

    files: list[str]
    size: int
    """Bytes of the files, before compression."""


def files_of(folder: Path) -> list[Path]:
    """Return a folder's source files in a fixed order, no symbolic links. Raises `NotFoundError` for a missing folder."""
    if not folder.is_dir():
        raise NotFoundError(f"There is no folder {folder}.")
    lines: list[str] = []
    for name in IGNORE_FILES:
        if (folder / name).is_file():
            lines += (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
    # Later lines take precedence: an ignore file can include a default again, never a secret.
    spec = pathspec.GitIgnoreSpec.from_lines([*DEFAULT_EXCLUDES, *lines, *SECRETS, ".git"])
    brings_back = any(line.startswith("!") for line in lines)
    paths = []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        # Ignored trees are not traversed, unless a negated line may match a path in them.
        folders[:] = [
            name
            for name in folders
            if name != ".git"
            and (brings_back or not spec.match_file(f"{_relative(here / name, folder)}/"))
        ]
        paths += [
            path
            for path in (here / name for name in names)
            if path.is_file()
            and not path.is_symlink()
            and not spec.match_file(_relative(path, folder))
        ]
    return sorted(paths)


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def pack(folder: Path, target: IO[bytes]) -> Packed:
    """Write a folder's source as a gzip tar, reproducible byte for byte. Raises `UsageError` for a folder without files."""
    paths = files_of(folder)
    if not paths:
        raise UsageError(f"{folder} holds no files to deploy.")
    # Without gzip's time stamp: equal sources make equal archives.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for path in paths:
            member = archive.gettarinfo(str(path), path.relative_to(folder).as_posix())
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = 0
            with path.open("rb") as file:
                archive.addfile(member, file)
    names = [path.relative_to(folder).as_posix() for path in paths]
    return Packed(names, sum(path.stat().st_size for path in paths))
