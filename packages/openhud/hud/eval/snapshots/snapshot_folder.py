"""`SnapshotFolder`: the snapshots of a job's runs on this machine, for its resumption after the process was killed."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from contextlib import suppress
from pathlib import Path

from hud.durable_files import replaced_file
from hud.errors import StoreError

KEPT_DAYS = 7
"""Age after which the snapshots of a job that nobody resumed are deleted."""
_DAY_SECONDS = 86_400.0


class SnapshotFolder:
    """The snapshots of one job, by task and attempt."""

    def __init__(self, folder: Path, job_id: str) -> None:
        """`folder` holds those of all jobs."""
        self._all, self._path = folder, folder / job_id

    def of(self, slug: str, attempt: int) -> StoredFile:
        """Return the store of a run's last snapshot."""
        digest = hashlib.sha256(slug.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return StoredFile(self._path / f"{digest}-{attempt}")

    async def clear(self) -> None:
        """Delete the folder of this job where no snapshot is left in it, and those of jobs that are too old."""
        await asyncio.to_thread(self._clear)

    def _clear(self) -> None:
        with suppress(OSError):
            self._path.rmdir()
        with suppress(OSError):
            for path in self._all.iterdir():
                if path.stat().st_mtime < time.time() - KEPT_DAYS * _DAY_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


class StoredFile:
    """A run's last snapshot, as a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._exists = path.exists()
        """False: no thread is needed, which a run could see and an audit does not have."""

    async def last(self) -> bytes | None:
        """Return the snapshot; None without one."""
        return await asyncio.to_thread(self._read) if self._exists else None

    async def keep(self, data: bytes | None) -> None:
        """Write a snapshot in place of the one before; None: delete it. Raises `StoreError`."""
        if data is None and not self._exists:
            return
        self._exists = data is not None
        await asyncio.to_thread(self._write, data)

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError:
            return None

    def _write(self, data: bytes | None) -> None:
        try:
            if data is None:
                self._path.unlink(missing_ok=True)
                return
            with replaced_file(self._path, 0o600) as file:
                file.write(data)
        except OSError as error:
            raise StoreError(f"A snapshot cannot be written to {self._path}: {error}.") from error
