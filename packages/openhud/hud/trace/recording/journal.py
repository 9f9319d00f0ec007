"""The journal: recorded events on disk, until they are in the store.

One file for each recording process, one event a line:

    CHECKSUM <tab> KIND <tab> ID <tab> STEP <tab> JSON

JSON escapes tabs and newlines, so a line is split without being parsed. A last line without its newline was cut off by a
crash, and is dropped; any other line whose checksum is wrong is damaged. A file is locked by the process that writes it; a
file that can be locked has no writer, and may be taken over.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError

from hud import exact_json
from hud.durable_files import append_lines, make_folder, refuse_irregular
from hud.errors import StoreError
from hud.trace.ids import new_id
from hud.trace.json_values import as_text, jsonable
from hud.trace.steps import AgentStep, Step, SubagentStep, without_samples

ORPHAN_SECONDS = 5.0
"""Time-out for locking a dead writer's journal, in seconds; a later process retries."""


_MOST_NAMED = 5
"""Maximum number of events that a message lists."""
_NAMES = {
    b"J": "the start of job {of}",
    b"R": "the start of run {of}",
    b"S": "step {step} of run {of}",
    b"T": "the tokens of step {step} of run {of}",
    b"E": "the end of run {of}",
    b"Z": "the end of job {of}",
}


_OPTIONS = exact_json.OPT_NON_STR_KEYS | exact_json.OPT_SERIALIZE_NUMPY
_TOKENS = {
    "prompt_token_ids",
    "output_token_ids",
    "output_logprobs",
    "checkpoint",
    "swaps",
    "pictures",
    "temperature",
    "excluded",
}
"""Fields of a sample that have columns of their own."""


def encode_json(value: Any) -> bytes:
    """Return plain data as JSON. Never fails: a value without a JSON form becomes a text, a too long integer hexadecimal.

    What is nested too deep for a store is cut off.
    """
    try:
        written = exact_json.dumps(value, default=as_text, option=_OPTIONS)
    except exact_json.JSONEncodeError:
        written = b""
    if not written or exact_json.is_nested_deep(written):
        return exact_json.dumps(jsonable(value), option=_OPTIONS)
    return written


def encode_step(step: Step) -> bytes:
    """Return a step as JSON, without its tokens; values become texts as in `encode_json`."""
    exclude: Any = None
    if isinstance(step, AgentStep) and step.sample is not None:
        exclude = {"sample": _TOKENS if step.sample.prompt_chunks is not None else True}
    elif isinstance(step, SubagentStep):
        # The nested run is recorded as a separate run, with its tokens.
        exclude = without_samples()
    try:
        written: bytes = step.__pydantic_serializer__.to_json(
            step, exclude_none=True, exclude=exclude, fallback=as_text
        )
        # pydantic writes integers of any length; no reader accepts them.
        if not (exact_json.has_unreadable_integer(written) or exact_json.is_nested_deep(written)):
            return written
    except PydanticSerializationError:
        pass
    fields = step.__pydantic_serializer__.to_python(
        step, exclude_none=True, exclude=exclude, by_alias=True
    )
    return exact_json.dumps(jsonable(fields), option=_OPTIONS)


class Event(NamedTuple):
    """An event: one line."""

    kind: bytes
    """J: a job starts. R: a run starts. S: a step ended. T: that step's tokens. E: a run ended. Z: a job ended."""
    identifier: str
    """Id of the job or the trace."""
    step: int
    """Number of the step; 0 for events of runs and jobs."""
    payload: bytes


def encode_event(kind: bytes, identifier: str, step: int, payload: bytes) -> bytes:
    """Return one line."""
    body = b"%b\t%b\t%d\t%b" % (kind, identifier.encode(), step, payload)
    return b"%08x\t%b\n" % (zlib.crc32(body), body)


def decode_events(data: bytes) -> Iterator[Event | None]:
    """Yield every whole line's event in order; None for a damaged line."""
    for line in data.split(b"\n")[:-1]:
        try:
            if int(line[:8], 16) != zlib.crc32(memoryview(line)[9:]):
                raise ValueError("checksum")
            _, kind, identifier, step, payload = line.split(b"\t", 4)
            event = Event(kind, identifier.decode(), int(step), payload)
        except ValueError:
            yield None
        else:
            yield event


class Journal:
    """One process's journal, opened for appending."""

    def __init__(self, folder: Path) -> None:
        self.size = 0
        while not self._create(folder):
            # Another process, collecting orphaned journals, removed the file between its creation and its lock.
            os.close(self._file)

    def _create(self, folder: Path) -> bool:
        try:
            make_folder(folder)
            self.path = folder / f"{os.getpid()}-{new_id()[:8]}.journal"
            flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
        except StoreError as error:
            where = f"Nothing can be recorded in {folder}"
            raise StoreError(f"{where}: {error} Or set HUD_HOME to another folder.") from error
        except OSError as error:
            raise _told(folder, error) from error
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return os.fstat(self._file).st_nlink > 0

    def append(self, data: bytes) -> None:
        """Append whole lines, atomically. Raises `StoreError` if they do not fit on the disk."""
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            os.ftruncate(self._file, self.size)
            raise _told(self.path, error) from error
        self.size += len(data)

    def read(self, start: int, most: int) -> bytes:
        """Return whole lines from offset `start` on, about `most` bytes at most."""
        data = os.pread(self._file, min(most, self.size - start), start)
        end = data.rfind(b"\n") + 1
        if end == 0 and start + len(data) < self.size:
            return self.read(start, most * 2)  # A single line is longer than `most`.
        return data[:end]

    def clear(self) -> None:
        """Delete all events, once the store has them."""
        os.ftruncate(self._file, 0)
        self.size = 0

    def close(self) -> None:
        """Close the file, and remove it if the store has all of it."""
        if self.size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def abandon(self) -> None:
        """Close this process's handle, and leave the file to the process that writes it."""
        os.close(self._file)


def orphaned_journals(folder: Path) -> Iterator[bytes]:
    """Yield the contents of dead processes' journals; each journal is removed after it was processed."""
    for path in sorted(folder.glob("*.journal")):
        refuse_irregular(path)  # A pipe would be read without end.
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _told(path, error) from error
        try:
            if _lock_orphan(file, path) and os.fstat(file).st_nlink > 0:
                yield _read_all(file)
                path.unlink(missing_ok=True)
        finally:
            os.close(file)


def _lock_orphan(file: int, path: Path) -> bool:
    """Lock the journal if its writer is dead; return False if it is in use.

    A child process that was forked as the writer died holds the lock until its `exec`; the lock of a dead writer is
    therefore waited for.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _lives(path.name.split("-")[0]) or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def _lives(writer: str) -> bool:
    """True while a process with that id exists, and for names in another format."""
    try:
        os.kill(int(writer), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, OverflowError):
        return True
    return True


def set_aside(folder: Path, data: bytes, damaged: Iterable[int]) -> None:
    """Append the lines of `data` that could not be stored, given by number, to `damaged.lines`, and log their names."""
    lines = data.split(b"\n")
    aside = b"".join(lines[number] + b"\n" for number in damaged)
    if not aside:
        return
    path = folder / "damaged.lines"
    append_lines(path, aside)
    names = ["a damaged line" if event is None else named(event) for event in decode_events(aside)]
    listed = ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
    warnings.warn(
        f"{len(names)} recorded events could not be stored ({listed}); they are kept in {path}. "
        "Everything else was stored.",
        stacklevel=2,
    )


def named(event: Event) -> str:
    """Return the name of an event for messages."""
    name = _NAMES.get(event.kind, "an event of an unknown kind of {of}")
    return name.format(of=event.identifier[:40], step=event.step)


def _read_all(file: int) -> bytes:
    chunks = []
    while chunk := os.read(file, 1 << 24):
        chunks.append(chunk)
    return b"".join(chunks)


def _told(path: Path, error: OSError) -> StoreError:
    closed = isinstance(error, PermissionError)
    cure = "Let this user write there" if closed else "Free some space"
    return StoreError(
        f"Nothing can be recorded in {path}: {error.strerror}{'' if closed else free_space(path)}. "
        f"What was recorded before is kept. {cure}, or set HUD_HOME to another folder."
    )


def free_space(path: Path) -> str:
    """Return the free disk space at `path`, as the last clause of a message."""
    existing = next((place for place in (path, *path.parents) if os.path.exists(place)), None)
    if existing is None:
        return ""
    return f"; {shutil.disk_usage(existing).free / 1e6:,.1f} MB are free there"
