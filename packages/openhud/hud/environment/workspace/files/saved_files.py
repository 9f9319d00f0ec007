"""`SavedFiles`: a workspace's files as their changes since the task's start, for snapshots of a run.

The archives are the agent's work. They are made and unpacked inside the sandbox, with the agent's rights alone; here their
sizes are bounded, and nothing of them is read.
"""

from __future__ import annotations

import os
import zlib

from hud.environment.part import NoSnapshotError
from hud.environment.workspace.sandbox.commands import execute
from hud.environment.workspace.sandbox.sandbox import Sandbox
from hud.environment.workspace.sandbox.scripts import script

MOST_FILES = 50_000
"""Entries of a workspace and of an archive."""
MOST_BYTES = 64 << 20
"""Contents of the changed files of an archive."""
_MOST_OUTPUT = 2 * MOST_BYTES
_SECONDS = 60.0
_ERROR_BYTES = 500


class SavedFiles:
    """The changes of a sandbox's files since `begin`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._marks = b"{}"
        # Devices are the sandbox's own, and shared memory ends with the processes that use it.
        self._folders = [folder for folder in sandbox.plan.writable if folder != "/dev"]

    async def begin(self) -> None:
        """Take the present files as the start. Raises `NoSnapshotError`."""
        self._marks = await self._run("mark", str(MOST_FILES), data=b"")

    async def save(self) -> bytes:
        """Return the changes as a compressed archive. Raises `NoSnapshotError`, for too many or too large ones, too."""
        archive = await self._run("save", str(MOST_FILES), str(MOST_BYTES), data=self._marks)
        return zlib.compress(archive, 1)

    async def restore(self, archive: bytes) -> None:
        """Make an archive's changes. Raises `NoSnapshotError`; the files are undefined then."""
        stream = zlib.decompressobj()
        try:
            data = stream.decompress(archive, _MOST_OUTPUT)
        except zlib.error:
            raise NoSnapshotError("its archive is damaged") from None
        if not stream.eof:
            raise NoSnapshotError("its archive is too large, or cut off")
        await self._run("restore", str(MOST_FILES), str(MOST_BYTES), data=data)

    async def _run(self, *arguments: str, data: bytes) -> bytes:
        """Run the script inside with `data` as its input, and return its output."""
        output, errors = bytearray(), bytearray()

        def take(piece: bytes) -> None:
            if len(output) <= _MOST_OUTPUT:
                output.extend(piece)

        def take_errors(piece: bytes) -> None:
            if len(errors) < _ERROR_BYTES:
                errors.extend(piece)

        descriptor = os.memfd_create("hud")
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(data)
            os.lseek(descriptor, 0, os.SEEK_SET)
            status = await execute(
                self._sandbox,
                self._sandbox.plan.program(script("saved_files", *arguments, *self._folders)),
                descriptor,
                take,
                take_errors,
                _SECONDS,
            )
        finally:
            os.close(descriptor)
        if status != 0 or len(output) > _MOST_OUTPUT:
            reason = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:_ERROR_BYTES]
            raise NoSnapshotError(reason or "its files could not be read within a minute")
        return bytes(output)
