"""Files of a workspace over SFTP, version 3, on standard input and output.

It runs as the agent's user in the sandbox, with the access of the agent's shell; paths and links need no further checks.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from typing import Any

VERSION = 3
PACKET_BYTES = 1 << 20
READ_BYTES = 1 << 18
NAMES_AT_A_TIME = 100

OK, EOF, NO_SUCH_FILE, DENIED, FAILURE, BAD_MESSAGE, UNSUPPORTED = 0, 1, 2, 3, 4, 5, 8
STATUS, HANDLE, DATA, NAME, ATTRIBUTES = 101, 102, 103, 104, 105
SIZE, OWNER, MODE, TIMES = 1, 2, 4, 8
READING, WRITING, APPENDING, CREATING, TRUNCATING, EXCLUSIVE = 1, 2, 4, 8, 16, 32
SIX_MONTHS = 180 * 86400

EXTENSIONS = {
    b"posix-rename@openssh.com": b"1",
    b"hardlink@openssh.com": b"1",
    b"fsync@openssh.com": b"1",
}


class Message:
    """Reader of a packet's fields."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str = ">I") -> int:
        (value,) = struct.unpack_from(kind, self.data, self.at)
        self.at += struct.calcsize(kind)
        return int(value)

    def string(self) -> bytes:
        length = self.number()
        value = self.data[self.at : self.at + length]
        if len(value) != length:
            raise struct.error("a string ends early")
        self.at += length
        return value

    def attributes(self) -> dict[str, Any]:
        """Read the attributes to set: `size`, `mode`, `times`; all files have the same owner."""
        flags = self.number()
        values: dict[str, Any] = {}
        if flags & SIZE:
            values["size"] = self.number(">Q")
        if flags & OWNER:
            self.number(), self.number()
        if flags & MODE:
            values["mode"] = self.number() & 0o777
        if flags & TIMES:
            values["times"] = self.number(), self.number()
        return values


class Server:
    """The open files of a client, and the operations on them."""

    def __init__(self, *, link_last: bool) -> None:
        """`link_last`: this client sends a symlink's target first (OpenSSH's order)."""
        self.link_last = link_last
        self.files: dict[bytes, int] = {}
        self.folders: dict[bytes, list[bytes]] = {}
        self.opened = 0

    def handle(self) -> bytes:
        self.opened += 1
        return str(self.opened).encode()

    def open(self, message: Message) -> bytes:
        path, wanted = message.string(), message.number()
        mode = message.attributes().get("mode", 0o666)
        flags = {READING: os.O_RDONLY, WRITING: os.O_WRONLY}.get(wanted & 3, os.O_RDWR)
        for bit, flag in (
            (APPENDING, os.O_APPEND),
            (CREATING, os.O_CREAT),
            (TRUNCATING, os.O_TRUNC),
            (EXCLUSIVE, os.O_EXCL),
        ):
            flags |= flag if wanted & bit else 0
        # Opening a pipe without a writer would block all later requests.
        descriptor = os.open(path, flags | os.O_NONBLOCK, mode)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        handle = self.handle()
        self.files[handle] = descriptor
        return packed(HANDLE, handle)

    def close(self, message: Message) -> bytes:
        handle = message.string()
        if handle in self.files:
            os.close(self.files.pop(handle))
        elif self.folders.pop(handle, None) is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return status(OK)

    def file(self, message: Message) -> int:
        descriptor = self.files.get(message.string())
        if descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return descriptor

    def read(self, message: Message) -> bytes:
        descriptor, offset, length = self.file(message), message.number(">Q"), message.number()
        data = os.pread(descriptor, min(length, READ_BYTES), offset)
        return packed(DATA, data) if data or not length else status(EOF)

    def write(self, message: Message) -> bytes:
        descriptor, offset, data = self.file(message), message.number(">Q"), message.string()
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written
        return status(OK)

    def stat(self, message: Message) -> bytes:
        return attributes(os.stat(message.string()))

    def lstat(self, message: Message) -> bytes:
        return attributes(os.lstat(message.string()))

    def fstat(self, message: Message) -> bytes:
        return attributes(os.fstat(self.file(message)))

    def setstat(self, message: Message) -> bytes:
        change(message.string(), message.attributes())
        return status(OK)

    def fsetstat(self, message: Message) -> bytes:
        change(self.file(message), message.attributes())
        return status(OK)

    def opendir(self, message: Message) -> bytes:
        path = message.string()
        handle = self.handle()
        self.folders[handle] = [
            named(name, os.path.join(path, name)) for name in [b".", b"..", *os.listdir(path)]
        ]
        return packed(HANDLE, handle)

    def readdir(self, message: Message) -> bytes:
        names = self.folders.get(message.string())
        if names is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not names:
            return status(EOF)
        some, names[:] = names[:NAMES_AT_A_TIME], names[NAMES_AT_A_TIME:]
        return struct.pack(">BI", NAME, len(some)) + b"".join(some)

    def remove(self, message: Message) -> bytes:
        os.unlink(message.string())
        return status(OK)

    def mkdir(self, message: Message) -> bytes:
        path = message.string()
        os.mkdir(path, message.attributes().get("mode", 0o777))
        return status(OK)

    def rmdir(self, message: Message) -> bytes:
        os.rmdir(message.string())
        return status(OK)

    def realpath(self, message: Message) -> bytes:
        path = os.path.realpath(message.string() or b".")
        return struct.pack(">BI", NAME, 1) + string(path) + string(path) + struct.pack(">I", 0)

    def rename(self, message: Message) -> bytes:
        old, new = message.string(), message.string()
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(old, new)
        return status(OK)

    def readlink(self, message: Message) -> bytes:
        target = os.readlink(message.string())
        return struct.pack(">BI", NAME, 1) + string(target) * 2 + struct.pack(">I", 0)

    def symlink(self, message: Message) -> bytes:
        first, second = message.string(), message.string()
        target, link = (first, second) if self.link_last else (second, first)
        os.symlink(target, link)
        return status(OK)

    def extended(self, message: Message) -> bytes:
        name = message.string()
        if name == b"posix-rename@openssh.com":
            os.replace(message.string(), message.string())
        elif name == b"hardlink@openssh.com":
            os.link(message.string(), message.string())
        elif name == b"fsync@openssh.com":
            os.fsync(self.file(message))
        else:
            return status(UNSUPPORTED, "not supported")
        return status(OK)

    def answer(self, kind: int, message: Message) -> bytes:
        """Return the response, without the request's number."""
        method = METHODS.get(kind)
        if method is None:
            return status(UNSUPPORTED, "not supported")
        try:
            answer: bytes = getattr(self, method)(message)
        except FileNotFoundError as error:
            return status(NO_SUCH_FILE, error.strerror or "")
        except PermissionError as error:
            return status(DENIED, error.strerror or "")
        except OSError as error:
            return status(FAILURE, error.strerror or str(error))
        except (struct.error, ValueError, OverflowError) as error:
            return status(BAD_MESSAGE, str(error))
        return answer


METHODS = {
    3: "open",
    4: "close",
    5: "read",
    6: "write",
    7: "lstat",
    8: "fstat",
    9: "setstat",
    10: "fsetstat",
    11: "opendir",
    12: "readdir",
    13: "remove",
    14: "mkdir",
    15: "rmdir",
    16: "realpath",
    17: "stat",
    18: "rename",
    19: "readlink",
    20: "symlink",
    200: "extended",
}


def string(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def packed(kind: int, value: bytes) -> bytes:
    return struct.pack(">B", kind) + string(value)


def status(code: int, words: str = "") -> bytes:
    return struct.pack(">BI", STATUS, code) + string(words.encode()) + string(b"")


def shape(metadata: os.stat_result) -> bytes:
    """Return encoded attributes, without the response's type."""
    seconds = [
        max(0, min(int(value), 0xFFFFFFFF)) for value in (metadata.st_atime, metadata.st_mtime)
    ]
    return struct.pack(
        ">IQIIIII",
        SIZE | OWNER | MODE | TIMES,
        metadata.st_size,
        metadata.st_uid,
        metadata.st_gid,
        metadata.st_mode,
        *seconds,
    )


def attributes(metadata: os.stat_result) -> bytes:
    return struct.pack(">B", ATTRIBUTES) + shape(metadata)


def named(name: bytes, path: bytes) -> bytes:
    """Return an entry of a listing: the name, a line in `ls -l` format, and the attributes."""
    try:
        metadata = os.lstat(path)
    except OSError:  # It was deleted meanwhile, or is inaccessible.
        return string(name) * 2 + struct.pack(">I", 0)
    recent = abs(time.time() - metadata.st_mtime) < SIX_MONTHS
    when = time.strftime("%b %e %H:%M" if recent else "%b %e  %Y", time.gmtime(metadata.st_mtime))
    owner = f"{metadata.st_uid:<8d} {metadata.st_gid:<8d}"
    line = f"{stat.filemode(metadata.st_mode)} {metadata.st_nlink:3d} {owner} {metadata.st_size:8d} {when} "
    return string(name) + string(line.encode() + name) + shape(metadata)


def change(path: Any, wanted: dict[str, Any]) -> None:
    if "size" in wanted:
        os.truncate(path, wanted["size"])
    if "mode" in wanted:
        os.chmod(path, wanted["mode"])
    if "times" in wanted:
        os.utime(path, wanted["times"])


def main() -> None:
    reader, writer = sys.stdin.buffer, sys.stdout.buffer
    server = Server(link_last=sys.argv[1:] == ["link-last"])
    while True:
        head = reader.read(4)
        if len(head) < 4:
            return
        (length,) = struct.unpack(">I", head)
        if not 1 <= length <= PACKET_BYTES:
            return
        packet = reader.read(length)
        if len(packet) < length:
            return
        if packet[0] == 1:
            answer = struct.pack(">BI", 2, VERSION)
            answer += b"".join(string(name) + string(value) for name, value in EXTENSIONS.items())
        elif len(packet) < 5:
            return
        else:
            answer = server.answer(packet[0], Message(packet[5:]))
            answer = answer[:1] + packet[1:5] + answer[1:]
        writer.write(struct.pack(">I", len(answer)) + answer)
        writer.flush()


if __name__ == "__main__":
    main()
