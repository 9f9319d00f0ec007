"""The journal: what happened, on disk the moment it is written, until the store has it.

One file for each recording process, one event a line:

    KIND <tab> ID <tab> STEP <tab> JSON

JSON escapes tabs and newlines, so a line is split without being parsed. A line without its newline is the torn
end of a process that died, and is dropped. A file is locked by the process that writes it; one that can be
locked has lost its writer, and may be taken over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hud.errors import StoreError
from hud.trace.ids import new_id

Kind = Literal[b"J", b"R", b"S", b"T", b"E", b"Z"]
"""J: a job starts. R: a run starts. S: a step ended. T: that step's tokens. E: a run ended. Z: a job ended."""


def encode_event(kind: bytes, identifier: str, step: int, payload: bytes) -> bytes:
    """Return one line."""
    return b"%b\t%b\t%d\t%b\n" % (kind, identifier.encode(), step, payload)


def decode_events(data: bytes) -> Iterator[tuple[bytes, str, int, bytes]]:
    """Yield `(kind, id, step, payload)` of every whole line."""
    for line in data.split(b"\n")[:-1]:
        kind, identifier, step, payload = line.split(b"\t", 3)
        yield kind, identifier.decode(), int(step), payload


class Journal:
    """One process's journal, opened for appending."""

    def __init__(self, home: Path) -> None:
        folder = home / "journal"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{os.getpid()}-{new_id()[:8]}.journal"
            self._file = os.open(
                self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise _told(folder, error) from error
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self.size = 0

    def append(self, data: bytes) -> None:
        """Append whole lines. Raises `StoreError` if they do not fit on the disk; then none of them is there."""
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            os.ftruncate(self._file, self.size)
            raise _told(self.path, error) from error
        self.size += len(data)

    def read(self, start: int, most: int) -> bytes:
        """Return whole lines from `start` on, at most about `most` bytes of them."""
        data = os.pread(self._file, min(most, self.size - start), start)
        end = data.rfind(b"\n") + 1
        if end == 0 and start + len(data) < self.size:
            return self.read(start, most * 2)  # One line is longer than that.
        return data[:end]

    def clear(self) -> None:
        """Forget everything: the store has it."""
        os.ftruncate(self._file, 0)
        self.size = 0

    def close(self) -> None:
        """Close the file, and remove it if the store has all of it."""
        if self.size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


def orphaned_journals(home: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the journals whose process is gone, with what they hold; each is removed once it was dealt with."""
    for path in sorted((home / "journal").glob("*.journal")):
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path, _read_all(file)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            continue
        finally:
            os.close(file)


def _read_all(file: int) -> bytes:
    chunks = []
    while chunk := os.read(file, 1 << 24):
        chunks.append(chunk)
    return b"".join(chunks)


def _told(path: Path, error: OSError) -> StoreError:
    free = ""
    existing = next((place for place in (path, *path.parents) if place.exists()), None)
    if existing is not None:
        free = f"; {shutil.disk_usage(existing).free / 1e6:,.0f} MB are free there"
    return StoreError(
        f"Nothing can be recorded in {path}: {error.strerror}{free}. What was recorded before is kept. "
        "Free some space, or set HUD_HOME to another folder."
    )
