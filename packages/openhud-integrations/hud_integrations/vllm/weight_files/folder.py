"""A folder of weights, and its manifest: the size and SHA-256 of each file."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

MANIFEST = ".manifest.json"
"""File of a received folder that has its manifest."""
NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$"
"""Pattern of names of models, versions and files: none leaves its folder, and none is hidden."""


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """Content of a file."""

    size: int = Field(ge=0)
    """Bytes."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel, frozen=True, extra="forbid"):
    """Files of a folder by name. Subfolders have no place in it."""

    files: dict[Annotated[str, Field(pattern=NAME)], FileEntry] = Field(min_length=1)


class WeightFolder:
    """A version of the weights on this machine's disk. Its files must not change."""

    def __init__(self, version: str, path: Path) -> None:
        self.version = version
        self.path = path

    @cached_property
    def manifest(self) -> Manifest:
        """Manifest of its visible files. Reads all of them at the first access."""
        return Manifest(
            files={
                path.name: entry_of(path) for path in sorted(self.path.iterdir()) if _is_sent(path)
            }
        )


def entry_of(path: Path) -> FileEntry:
    """Return the size and digest of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(size=file.tell(), sha256=digest)


def read_chunk(path: Path, offset: int, size: int) -> bytes | None:
    """Return `size` bytes of a file at an offset; None if the file is shorter or absent."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            chunk = file.read(size)
    except FileNotFoundError:
        return None
    return chunk if len(chunk) == size else None


def _is_sent(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")
