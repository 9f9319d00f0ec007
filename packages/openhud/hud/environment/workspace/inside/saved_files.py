"""Save a workspace's files as their changes since a start, and restore them, inside, with the agent's rights alone.

    python saved_files.py mark ENTRIES FOLDERS...                         the files now, as JSON
    python saved_files.py save ENTRIES BYTES FOLDERS... < MARKS           changes since the marks, as an archive
    python saved_files.py restore ENTRIES BYTES FOLDERS... < ARCHIVE

An archive is a sequence of entries: a line of JSON, and for a file its contents. It has no other kinds than these, so no
device, pipe or socket can be in one, and no link is followed where it is restored:

    {"kind": "file", "path": ..., "mode": ..., "time": ..., "size": ...}      {"kind": "gone", "path": ...}
    {"kind": "folder", "path": ..., "mode": ..., "time": ...}                 {"kind": "link", "path": ..., "time": ..., "target": ...}
    {"kind": "same", "path": ..., "time": ...}      unchanged; its time is restored, for programs that compare times
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from typing import Any, BinaryIO

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
PIECE_BYTES = 1 << 18
MODE = 0o777
"""Bits of a mode that are saved and restored: neither setuid nor setgid."""
LONGEST_LINE = 1 << 16
MOST_DEPTH = 200


class NotRestorableError(Exception):
    """Files that cannot be saved, or an archive that is not restored."""


def walk(folders: list[str], most: int) -> dict[str, tuple[str, os.stat_result]]:
    """Return kind and status of every folder, file and link below `folders`, by path; folders before what they hold.

    Raises `NotRestorableError` for more than `most`. Other file systems below are not entered.
    """
    entries: dict[str, tuple[str, os.stat_result]] = {}
    for top in folders:
        try:
            device = os.lstat(top).st_dev
        except OSError:
            continue
        ahead = [(top, 0)]
        while ahead:
            folder, depth = ahead.pop()
            for name in sorted(listed(folder)):
                path = f"{folder}/{name}"
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    kind = kind_of(status)
                    if kind is None or status.st_dev != device:
                        continue
                    entries[path] = kind, status
                    if len(entries) > most:
                        raise NotRestorableError(f"it has more than {most:,} files")
                    if kind == "folder" and path not in folders:
                        if depth >= MOST_DEPTH:
                            raise NotRestorableError(f"its folders are deeper than {MOST_DEPTH}")
                        ahead.append((path, depth + 1))
    return entries


def listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def kind_of(status: os.stat_result) -> str | None:
    """Return the kind of an entry; None for devices, pipes and sockets, which are left out."""
    if stat.S_ISREG(status.st_mode):
        return "file"
    if stat.S_ISDIR(status.st_mode):
        return "folder"
    return "link" if stat.S_ISLNK(status.st_mode) else None


def mark_of(kind: str, status: os.stat_result) -> list[Any]:
    """Return what tells that an entry is unchanged: of a file its inode, size and times too, since none sets its ctime."""
    if kind == "folder":
        return [kind, status.st_mode & MODE, status.st_ino]
    return [kind, status.st_mode & MODE, status.st_ino, status.st_size, status.st_ctime_ns]


def mark(folders: list[str], most: int) -> bytes:
    entries = walk(folders, most)
    return json.dumps({path: mark_of(*entry) for path, entry in entries.items()}).encode()


def save(
    marks: dict[str, Any], folders: list[str], most: int, most_bytes: int, out: BinaryIO
) -> None:
    """Write the archive of what has changed since `marks`. Raises `NotRestorableError` for more than `most_bytes` of contents."""
    entries = walk(folders, most)
    for path in marks:
        if path not in entries:
            write_line(out, {"kind": "gone", "path": path})
    for path, (kind, status) in entries.items():
        entry: dict[str, Any] = {"kind": kind, "path": path, "time": status.st_mtime_ns}
        if marks.get(path) == mark_of(kind, status):
            write_line(out, {**entry, "kind": "same"})
        elif kind == "link":
            write_line(out, {**entry, "target": os.readlink(path)})
        elif kind == "folder":
            write_line(out, {**entry, "mode": status.st_mode & MODE})
        else:
            most_bytes -= save_file(path, entry, most_bytes, out)


def save_file(path: str, entry: dict[str, Any], most: int, out: BinaryIO) -> int:
    """Write a file's entry and contents; returns its size. Raises `OSError` for a file that cannot be read."""
    try:
        file = os.open(path, FILE)
    except FileNotFoundError:
        return 0  # It was deleted meanwhile.
    with os.fdopen(file, "rb") as source:
        status = os.fstat(file)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            return 0
        if size > most:
            raise NotRestorableError("more of it has changed than a snapshot holds")
        write_line(out, {**entry, "mode": status.st_mode & MODE, "size": size})
        left = size
        while left > 0 and (piece := source.read(min(PIECE_BYTES, left))):
            out.write(piece)
            left -= len(piece)
        out.write(bytes(left))  # It was cut meanwhile.
    return size


def write_line(out: BinaryIO, entry: dict[str, Any]) -> None:
    out.write(json.dumps(entry).encode() + b"\n")


def restore(source: BinaryIO, folders: list[str], most: int, most_bytes: int) -> None:
    """Make the changes of an archive. Raises `NotRestorableError` for an entry that is none of these folders', or of another form."""
    times: list[tuple[str, int]] = []
    modes: list[tuple[str, int]] = []
    while line := source.readline(LONGEST_LINE):
        most -= 1
        if most < 0:
            raise NotRestorableError("it has too many entries")
        try:
            entry = json.loads(line)
            kind, path = entry["kind"], entry["path"]
            parts = parts_below(path, folders)
            if "time" in entry:
                times.append((path, int(entry["time"])))
            if kind == "folder":
                modes.append((path, int(entry["mode"]) & MODE))
            size = int(entry["size"]) if kind == "file" else 0
            mode = int(entry["mode"]) & MODE if kind == "file" else 0
            target = str(entry["target"]) if kind == "link" else ""
        except (ValueError, KeyError, TypeError) as error:
            raise NotRestorableError("an entry of it is damaged") from error
        if kind == "same":
            continue
        if kind not in ("file", "folder", "link", "gone"):
            raise NotRestorableError(f"an entry of it is a {kind!r}")
        if not 0 <= size <= most_bytes:
            raise NotRestorableError("it is too large")
        most_bytes -= size
        try:
            at = open_folder(parts[:-1])
        except NotRestorableError:
            if kind == "gone":
                continue  # With its folder.
            raise
        try:
            restore_entry(at, parts[-1], kind, target)
            if kind == "file":
                restore_contents(at, parts[-1], mode, source, size)
        finally:
            os.close(at)
    # Last: a folder that its owner may not write into is filled first, and filling it changes its time.
    for path, mode in reversed(modes):
        with_folder(path, set_mode, mode)
    for path, time in reversed(times):
        with_folder(path, set_time, time)


def parts_below(path: Any, folders: list[str]) -> list[str]:
    """Return the names of a path below one of the folders. Raises `ValueError` for any other."""
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise ValueError("path")
    parts = path.split("/")[1:]
    if any(part in ("", ".", "..") for part in parts) or len(parts) > 2 * MOST_DEPTH:
        raise ValueError("path")
    if not any(path.startswith(f"{folder}/") for folder in folders):
        raise ValueError("folder")
    return parts


def open_folder(parts: list[str]) -> int:
    """Return a descriptor of a folder, without following a link on the way. Raises `NotRestorableError`."""
    at = os.open("/", FOLDER)
    for part in parts:
        try:
            below = os.open(part, FOLDER, dir_fd=at)
        except OSError as error:
            raise NotRestorableError("an entry of it lies in no folder") from error
        finally:
            os.close(at)
        at = below
    return at


def restore_entry(at: int, name: str, kind: str, target: str) -> None:
    """Delete what is in an entry's place, and make a folder or a link there."""
    try:
        status = os.lstat(name, dir_fd=at)
    except FileNotFoundError:
        status = None
    if status is not None:
        if stat.S_ISDIR(status.st_mode):
            if kind == "folder":
                os.chmod(name, 0o700, dir_fd=at)
                return
            delete_folder(at, name)
        else:
            os.unlink(name, dir_fd=at)
    if kind == "folder":
        os.mkdir(name, 0o700, dir_fd=at)
    elif kind == "link":
        os.symlink(target, name, dir_fd=at)


def delete_folder(at: int, name: str) -> None:
    os.chmod(name, 0o700, dir_fd=at)
    folder = os.open(name, FOLDER, dir_fd=at)
    try:
        for below in os.listdir(folder):
            if stat.S_ISDIR(os.lstat(below, dir_fd=folder).st_mode):
                delete_folder(folder, below)
            else:
                os.unlink(below, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=at)


def restore_contents(at: int, name: str, mode: int, source: BinaryIO, size: int) -> None:
    with os.fdopen(os.open(name, NEW, 0o600, dir_fd=at), "wb") as file:
        while size > 0:
            piece = source.read(min(PIECE_BYTES, size))
            if not piece:
                raise NotRestorableError("it ends early")
            file.write(piece)
            size -= len(piece)
        os.fchmod(file.fileno(), mode)


def with_folder(path: str, change: Any, value: int) -> None:
    """Change an entry through its folder; no effect where it is not there."""
    parts = path.split("/")[1:]
    with contextlib.suppress(OSError, NotRestorableError, OverflowError):
        at = open_folder(parts[:-1])
        try:
            change(at, parts[-1], value)
        finally:
            os.close(at)


def set_mode(at: int, name: str, mode: int) -> None:
    if not stat.S_ISLNK(os.lstat(name, dir_fd=at).st_mode):
        os.chmod(name, mode, dir_fd=at)


def set_time(at: int, name: str, time: int) -> None:
    os.utime(name, ns=(time, time), dir_fd=at, follow_symlinks=False)


def main() -> int:
    what, most, *rest = sys.argv[1:]
    try:
        if what == "mark":
            sys.stdout.buffer.write(mark(rest, int(most)))
        elif what == "save":
            marks = json.loads(sys.stdin.buffer.read())
            save(marks, rest[1:], int(most), int(rest[0]), sys.stdout.buffer)
        else:
            restore(sys.stdin.buffer, rest[1:], int(most), int(rest[0]))
        sys.stdout.buffer.flush()
    except NotRestorableError as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
