"""Durable files: after a crash of the process or of the machine a file holds its new content, or its old one, and no part.

A rename alone is not durable: a file system may store the name before the content. Content is flushed first, then the file is
renamed, then the folder that has the name is flushed. This module knows nothing about what files hold.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hud import exact_json
from hud.errors import StoreError

PRIVATE = 0o600
"""Mode of files that only their owner may read."""
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def replaced_file(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Provide a new file, which replaces `path` when the block ends; an exception leaves `path` as it was.

    The folder is created where it is missing. `mode` is that of the new file, reduced by the umask. Raises `StoreError` if
    `path` is a folder.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except IsADirectoryError:
        raise StoreError(f"{path} is a folder where a file belongs. Move it away.") from None
    finally:
        temporary.unlink(missing_ok=True)
    flush_folder(path.parent)


def write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a whole file durably; see `replaced_file`."""
    with replaced_file(path, mode) as file:
        file.write(content)


def open_lock(path: Path) -> IO[str]:
    """Open the file of a lock, which is created where it is missing. Raises `StoreError` for what cannot be opened as one."""
    try:
        refuse_irregular(path)  # A pipe would be waited for without end.
        return path.open("w")
    except StoreError as error:
        raise StoreError(f"The lock {path} cannot be opened: {error}") from None
    except OSError as error:
        raise StoreError(
            f"The lock {path} cannot be opened: {error.strerror}. Remove it, or make it writable."
        ) from None


def write_first(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file durably, unless it is there already: of several processes the first one's content stays."""
    candidate = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_file(candidate, content, mode)
        with suppress(FileExistsError):
            os.link(candidate, path)
    finally:
        candidate.unlink(missing_ok=True)
    flush_folder(path.parent)


def read_regular(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing. Raises `StoreError` for what is no file, or cannot be read."""
    try:
        # Without waiting for a writer, if it is a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if path.is_symlink():
            raise StoreError(f"{path} is a link to a file that is missing.") from None
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(_no_file(path))
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def refuse_irregular(path: Path) -> None:
    """Raise `StoreError` for what is no file, such as a folder or a pipe; a missing file is none of these."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise StoreError(
            f"{path} cannot be reached: a folder on the way is closed to this user. Open it, or set HUD_HOME to another "
            "folder."
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(mode):
        raise StoreError(_no_file(path))


def closed_file(error: Exception) -> StoreError | None:
    """Return the error of a file that this user may not read or write, with its cure; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in _CLOSED or not error.filename:
        return None
    return StoreError(
        f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}. Let this user read and write it, or choose another "
        "folder (HUD_HOME)."
    )


def refuse_open(path: Path) -> None:
    """Raise `StoreError` for a file that other users of the machine own, or that every one of them may read or write."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise StoreError(
            f"{path} belongs to another user of this machine (uid {status.st_uid}), who can read and change it. If that "
            f"one is trusted: chown {os.geteuid()} {path}"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o006:
        raise StoreError(
            f"{path} is open to every user of this machine (mode {mode:o}). If none of them may have read it: "
            f"chmod 600 {path}"
        )


def read_object(path: Path, cure: str) -> dict[str, Any]:
    """Return the JSON object in a file, an empty one if it is missing. Raises `StoreError`, ending in `cure`, for a damaged file."""
    content = read_regular(path)
    if content is None:
        return {}
    try:
        value = exact_json.loads(content)
    except exact_json.JSONDecodeError as error:
        raise StoreError(f"{path} is damaged ({error}). {cure}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is damaged: it holds no JSON object. {cure}")
    return value


def append_lines(path: Path, lines: bytes) -> None:
    """Append whole lines durably. A last line that a crash cut off is ended first, so that none is added to its rest."""
    make_folder(path.parent)
    refuse_irregular(path)
    with path.open("a+b") as file:
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            lines = b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    flush_folder(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder durably, with those above it; `mode` is that of the last one. Raises `StoreError` if it cannot be."""
    if folder.is_dir():
        return
    if os.path.lexists(folder):
        raise StoreError(f"{folder} is no folder. Move it away.")
    make_folder(folder.parent)
    try:
        folder.mkdir(mode=mode, exist_ok=True)
    except PermissionError as error:
        raise StoreError(f"{folder} cannot be created: {error.strerror}.") from error
    flush_folder(folder.parent)


def rename_folder(source: Path, target: Path) -> None:
    """Rename a folder durably, with everything in it: `target` is absent or complete. `source` may hold links."""
    flush_tree(source)
    source.rename(target)
    flush_folder(target.parent)


def flush_tree(folder: Path) -> None:
    """Flush every file and folder below a folder, itself included, to the disk. Links are not followed."""
    for inner, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            if not os.path.islink(path) and os.path.isfile(path):
                _flush(path)
        flush_folder(Path(inner))


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    _flush(folder)


def _no_file(path: Path) -> str:
    return f"{path} is no file. Remove it, or restore it from a backup."


def _flush(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
