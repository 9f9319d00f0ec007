"""The shipper: owner of a process's journal, with a thread that sends its lines to the platform.

Works on bytes, offsets and acknowledgements; independent of the lines' contents. Lines remain in the journal, and are
retried, until the platform acknowledges them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from hud.client.client import Client
from hud.errors import HudError, PlatformError, StoreError
from hud.trace.recording.journal import Journal, orphaned_journals, set_aside

BATCH_BYTES = 2 << 20
"""Most bytes of a batch, unless a single line is longer; so many are shipped at once."""
GATHER_SECONDS = 0.5
"""Time for which events are batched before shipping, unless a flush waits, in seconds: a transaction costs as much processor time
as some isolated rollouts, and a page that follows a job shows a step within a second."""
KEEP_BYTES = 1 << 20
"""Size in bytes above which a fully shipped journal is truncated."""
ROTATE_BYTES = 64 << 20
"""Shipped bytes after which the rest moves to a new journal."""
RETRY_SECONDS = 2.0
PATIENCE_SECONDS = 10.0
"""Time-out of a flush for an unreachable platform, in seconds."""


class Shipper:
    """A journal in `folder`, shipped through `client` until closed."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder = folder
        self._client = client
        self._journal = Journal(folder)
        self._lock = threading.Lock()
        self._shipped = 0
        """Acknowledged bytes of the journal."""
        self._gone = 0
        """Shipped bytes that were removed from the journal."""
        self._waiting: list[tuple[int, float, Future[None]]] = []
        self._something = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self._orphans: Future[None] = Future()
        """Done when the journals of dead processes were shipped, or could not be."""
        self._thread = threading.Thread(target=self._work, name="hud-shipper", daemon=True)
        self._thread.start()

    def append(self, data: bytes) -> None:
        """Write whole lines to the journal; raises `StoreError` if they do not fit."""
        with self._lock:
            self._journal.append(data)
            much = self._journal.size - self._shipped > BATCH_BYTES
        if not self._something.is_set():
            self._something.set()
        if much:
            self._hurry.set()

    async def flush(self) -> None:
        """Wait until all appended lines are in the store; raises `StoreError` on failure."""
        shipped: Future[None] = Future()
        with self._lock:
            written = self._gone + self._journal.size
            if written == self._gone + self._shipped:
                return
            self._waiting.append((written, time.monotonic() + PATIENCE_SECONDS, shipped))
        self._hurry.set()
        self._something.set()
        await asyncio.wrap_future(shipped)

    async def collect(self) -> None:
        """Wait until the journals that dead processes left in the folder are in the store; raises the error if they are not."""
        await asyncio.wrap_future(self._orphans)

    def close(self) -> None:
        """Ship the remaining lines and close the journal; unshipped lines remain for the next process."""
        self._closing = True
        self._hurry.set()
        self._something.set()
        self._thread.join(timeout=60)
        with self._lock:
            if self._shipped == self._journal.size:
                self._journal.clear()
            self._journal.close()

    def abandon(self) -> None:
        """Detach in a forked child: the journal and the thread belong to its parent."""
        self._closing = True
        self._journal.abandon()

    # -- the thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        with asyncio.Runner() as runner:
            try:
                # The embedded platform collects orphans itself.
                if self._client.api_url is not None:
                    runner.run(send_orphans(self._client, self.folder))
            except Exception as error:  # Raised in those who wait; the thread goes on.
                self._orphans.set_exception(error)
            else:
                self._orphans.set_result(None)
            while True:
                self._something.wait()
                self._hurry.wait(GATHER_SECONDS)
                closing = self._closing
                self._something.clear()
                self._hurry.clear()
                try:
                    while self._pending():
                        runner.run(self._ship_batch())
                        self._tell_waiting()
                # Any error is raised in the waiting callers, and must not end the thread.
                except Exception as error:
                    self._tell_failure(error, closing)
                    self._something.set()
                    if not closing:
                        self._hurry.wait(RETRY_SECONDS)
                if closing:
                    return

    def _pending(self) -> bool:
        with self._lock:
            return self._shipped < self._journal.size

    async def _ship_batch(self) -> None:
        with self._lock:
            batch = self._journal.read(self._shipped, BATCH_BYTES)
        await send(self._client, self.folder, batch)
        with self._lock:
            self._shipped += len(batch)
            if self._shipped == self._journal.size and self._shipped > KEEP_BYTES:
                self._journal.clear()
                self._gone += self._shipped
                self._shipped = 0
            elif self._shipped > ROTATE_BYTES:
                self._rotate()

    def _rotate(self) -> None:
        """Move unshipped lines to a new journal, so that continuous recording does not fill the disk."""
        left = self._journal.read(self._shipped, self._journal.size - self._shipped)
        new = Journal(self.folder)
        try:
            new.append(left)
        except StoreError:
            new.close()
            return
        # Until here both files have the lines; ingestion is idempotent.
        self._journal.clear()
        self._journal.close()
        self._journal = new
        self._gone += self._shipped
        self._shipped = 0

    def _tell_waiting(self) -> None:
        with self._lock:
            there = self._gone + self._shipped
            done = [future for target, _, future in self._waiting if target <= there]
            self._waiting = [waiter for waiter in self._waiting if waiter[0] > there]
        for future in done:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _tell_failure(self, error: Exception, closing: bool) -> None:
        """Fail the flushes whose time-out has passed; they have one for an unreachable platform only."""
        final = closing or not isinstance(error, PlatformError)
        now = time.monotonic()
        with self._lock:
            over = [waiter for waiter in self._waiting if final or waiter[1] <= now]
            self._waiting = [waiter for waiter in self._waiting if waiter not in over]
        for _, _, future in over:
            if future.set_running_or_notify_cancel():
                future.set_exception(self._explained(error))

    def _explained(self, error: Exception) -> StoreError:
        reason = str(error) if isinstance(error, HudError) else f"{type(error).__name__}: {error}."
        explained = StoreError(
            f"{reason} What was recorded is kept in {self._journal.path} and is stored when it can be."
        )
        explained.__cause__ = error
        return explained


class UnstoredShipper(Shipper):
    """Shipper of an audit: it has the journal, the thread and the connections of an evaluation, and sends nothing.

    Its lines have no ends: if this process is killed, readers of the journal take them for one that was cut off.
    """

    def append(self, data: bytes) -> None:
        super().append(data.replace(b"\n", b"\t"))

    def close(self) -> None:
        """Remove the journal."""
        with self._lock:
            self._journal.clear()
            self._shipped = 0
        super().close()

    async def _ship_batch(self) -> None:
        await self._client.ingest(b"")
        with self._lock:
            self._shipped = self._journal.size
            if self._shipped > KEEP_BYTES:
                self._journal.clear()
                self._shipped = 0


async def send(client: Client, folder: Path, batch: bytes) -> None:
    """Send journal lines to the platform; rejected lines are kept in a file in `folder`."""
    set_aside(folder, batch, await client.ingest(batch))


async def send_orphans(client: Client, folder: Path) -> None:
    """Ship the journals of dead processes."""
    for data in orphaned_journals(folder):
        await send(client, folder, data)
