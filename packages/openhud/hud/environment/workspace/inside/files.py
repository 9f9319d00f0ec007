"""Read and write single files of a workspace for its environment, without following links that the agent could have made.

    python files.py write PATH < DATA        python files.py read PATH BYTES
    python files.py folder PATH              python files.py empty PATH FOLDERS...
    python files.py confine PATHS... < LINKS

Links in read-only file systems are the system's own and are followed. A link in a writable file system is replaced by a
write and refused by a read: it could point to files that were added after the agent's end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys

PIECE_BYTES = 1 << 18
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEVER_WRITABLE = ("/proc", "/sys", "/run/hud")
MOST_LINKS, MOST_BYTES = 40, 4096
"""Links that the kernel follows in one path, and bytes of a path."""


def opened(path: str, *, make: bool) -> int:
    """Return a descriptor of the folder at `path`; `make` creates missing folders."""
    at = os.open("/", FOLDER)
    for name in path.split("/"):
        if name:
            below = step(at, name, make=make)
            os.close(at)
            at = below
    return at


def step(at: int, name: str, *, make: bool) -> int:
    """Return a descriptor of folder `name` in folder `at`. Raises `OSError` for a run's link, unless `make`."""
    if is_link(at, name):
        if is_the_systems(at):
            return os.open(name, FOLDER, dir_fd=at)
        if not make:
            raise OSError(errno.ELOOP, "it is, or lies behind, a link")
        os.unlink(name, dir_fd=at)
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=at)
    return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)


def is_link(at: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=at).st_mode)
    except FileNotFoundError:
        return False


def is_the_systems(at: int) -> bool:
    """Return True for a link in a read-only file system."""
    return is_read_only(at)


def is_read_only(folder: str | int) -> bool:
    """Return True for a folder, or its descriptor, in a read-only file system."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def write(path: str) -> None:
    """Write standard input to a file, keeping its mode. Raises `IsADirectoryError` for a folder."""
    folder, _, name = path.rpartition("/")
    at = opened(folder, make=True)
    mode = 0o644
    try:
        status = os.lstat(name, dir_fd=at)
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder is there")
        if stat.S_ISREG(status.st_mode):
            mode = stat.S_IMODE(status.st_mode)
        os.unlink(name, dir_fd=at)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
    os.fchmod(file, mode)
    copy(0, file)


def read(path: str, most: int) -> None:
    """Write at most `most` bytes of a file to standard output. Raises `OSError` for a link or a special file."""
    folder, _, name = path.rpartition("/")
    at = opened(folder, make=False)
    if is_link(at, name) and not is_the_systems(at):
        raise OSError(errno.ELOOP, "it is a link")
    # Opening a pipe could block forever.
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    copy(file, 1, most)


def empty(path: str, writable: list[str]) -> None:
    """Make `path` an empty folder, whatever is there; delete links in the `writable` folders that lead into it.

    Links into `/proc` are deleted, too: they lead to the open files of the program that follows them.
    """
    at = os.open("/", FOLDER)
    for name in path.split("/"):
        if name:
            below = own_folder(at, name)
            os.close(at)
            at = below
    clear(at)
    barred = {identity(os.fstat(at)), (os.stat("/proc").st_dev, None)}
    modes: list[tuple[str, int]] = []
    ahead = list(writable)
    while ahead:
        place = ahead.pop()
        for name in names_in(place, modes):
            entry = os.path.join(place, name)
            if entry in NEVER_WRITABLE:
                continue
            if not os.path.islink(entry):
                ahead += [entry] if os.path.isdir(entry) else []
            elif not is_read_only(place) and leads_through(place, name, barred):
                os.unlink(entry)
    for place, mode in reversed(modes):
        os.chmod(place, mode)


def confine(links: list[str], paths: list[str]) -> None:
    """Delete those of the links that lead out of `paths`: to files that whoever made them was not given."""
    roots = [
        os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for path in paths
        if not lies_in(os.path.dirname(path), paths)
    ]
    for link in links:
        target = os.path.realpath(link)
        if not lies_in(target, roots) or len(os.fsencode(target)) >= MOST_BYTES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)


def lies_in(path: str, places: list[str]) -> bool:
    return any(path == place or path.startswith(f"{place.rstrip('/')}/") for place in places)


def names_in(folder: str, modes: list[tuple[str, int]]) -> list[str]:
    """Return the names in a folder after letting the owner list and change it; its mode before is added to `modes`.

    An empty list stands for a folder that cannot be listed: of the system, or of too long a path.
    """
    try:
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU and not is_read_only(folder):
            os.chmod(folder, mode | stat.S_IRWXU)
            modes.append((folder, mode))
        return os.listdir(folder)
    except OSError:
        return []


def leads_through(folder: str, name: str, barred: set[tuple[int, int | None]]) -> bool:
    """Return True if link `name` in `folder` leads through a barred folder, or through a whole barred file system.

    The way is followed step by step, as the kernel does: a path may be longer than a call accepts.
    """
    at, ahead, links = os.open(folder, PLACE), [name], 0
    try:
        while ahead:
            part = ahead.pop()
            try:
                status = os.lstat(part, dir_fd=at)
            except OSError:
                return ".." in ahead  # Nothing is there yet; the tests may add a folder.
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > MOST_LINKS:
                    return False
                target = os.readlink(part, dir_fd=at)
                ahead += [step for step in reversed(target.split("/")) if step]
                ahead += ["/"] if target.startswith("/") else []
                continue
            if identity(status) in barred or (status.st_dev, None) in barred:
                return True
            if not stat.S_ISDIR(status.st_mode):
                return False
            below = os.open(part, PLACE, dir_fd=at)
            os.close(at)
            at = below
    finally:
        os.close(at)
    return False


def identity(status: os.stat_result) -> tuple[int, int | None]:
    return status.st_dev, status.st_ino


def own_folder(at: int, name: str) -> int:
    """Return a descriptor of folder `name` in folder `at`, made accessible, or made in place of another file."""
    if is_the_systems(at) and is_link(at, name):
        return os.open(name, FOLDER, dir_fd=at)
    if not is_folder(at, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        os.mkdir(name, 0o755, dir_fd=at)
    with contextlib.suppress(OSError):  # Not the agent's, so its mode is the system's.
        os.chmod(name, stat.S_IMODE(os.lstat(name, dir_fd=at).st_mode) | 0o700, dir_fd=at)
    return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=at)


def is_folder(at: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(name, dir_fd=at).st_mode)
    except FileNotFoundError:
        return False


def clear(top: int) -> None:
    """Delete everything in a folder. Subfolders are moved up first, so that no depth is too great."""
    while names := os.listdir(top):
        for name in names:
            if not is_folder(top, name):
                os.unlink(name, dir_fd=top)
                continue
            os.chmod(name, 0o700, dir_fd=top)
            folder = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=top)
            for below in os.listdir(folder):
                if is_folder(folder, below):
                    os.chmod(below, 0o700, dir_fd=folder)
                    os.rename(below, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(below, dir_fd=folder)
            os.close(folder)
            os.rmdir(name, dir_fd=top)


def copy(source: int, target: int, most: int = sys.maxsize) -> None:
    while most > 0 and (piece := os.read(source, min(PIECE_BYTES, most))):
        most -= len(piece)
        while piece:
            piece = piece[os.write(target, piece) :]


def main() -> int:
    what, path = sys.argv[1], os.fsencode(sys.argv[2]).decode("utf-8", "surrogateescape")
    try:
        if what == "write":
            write(path)
        elif what == "read":
            read(path, int(sys.argv[3]))
        elif what == "empty":
            empty(path, sys.argv[3:])
        elif what == "confine":
            confine([os.fsdecode(link) for link in sys.stdin.buffer.read().split(b"\0") if link], sys.argv[2:])  # fmt: skip
        else:
            opened(path, make=True)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
