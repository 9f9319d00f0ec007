"""Ingestion of a platform's journal lines: in this process, or in one beside it while large batches come.

The process beside takes only work that its owner would do otherwise: decoding lines and executing statements hold the
interpreter's lock, which rollouts or a server's event loop need at the same time. A batch that fails there, or whose process
has ended, is ingested here, so that errors have one source. See docs/decisions/0014-ingestion-beside.md.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from hud import exact_json
from hud.errors import StoreError
from hud.platform.store import Store
from hud.platform.store.blobs import Blobs
from hud.platform.store.ingest import Ingested, ingest

LARGE_BYTES = 1 << 19
"""Size of a batch, in bytes, from which on the process is started: about 300 short rollouts, which take 15 to 30 ms to ingest."""
IDLE_SECONDS = 60.0
"""Time without a batch after which the process ends."""
ANSWER_SECONDS = 60
"""Time-out for its answer to a batch, after which it is killed: twice the longest wait for SQLite's lock."""
END_SECONDS = 30.0
"""Time-out for its end, after which it is killed."""
YOUNG_OBJECTS = 100_000
"""Objects that its collector waits for: a batch's rows are in use until its end."""


class Ingestion:
    """Ingestion into one store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._owner = os.getpid()
        self._beside: _Beside | None = None
        self._starts = True
        """False once a process could not be started."""
        self._lock = threading.Lock()
        """Held while a batch is in the process beside."""

    @property
    def pid(self) -> int | None:
        """Id of the process beside; None without one."""
        return None if self._beside is None else self._beside.pid

    def take(self, data: bytes, team: str) -> Ingested:
        """Ingest a batch; see `ingest`."""
        if self._lock.acquire(blocking=False):
            try:
                if (done := self._taken_beside(data, team)) is not None:
                    return done
            finally:
                self._lock.release()
        return ingest(self.store, data, team)

    def close(self) -> None:
        """End the process beside, after its batch."""
        if os.getpid() != self._owner:
            return  # A forked child: the process is its parent's.
        with self._lock:
            beside, self._beside = self._beside, None
            if beside is not None:
                beside.close()

    def _taken_beside(self, data: bytes, team: str) -> Ingested | None:
        """Return the result of the process beside; None without one that is ready, and after a failure there."""
        if os.getpid() != self._owner:
            return None
        try:
            if self._beside is not None:
                return self._beside.take(data, team)
            if self._starts and len(data) >= LARGE_BYTES:
                self._beside = _Beside(self.store)
        except (OSError, EOFError):  # It has ended, does not answer, or cannot be started.
            beside, self._beside = self._beside, None
            self._starts = beside is not None and beside.ready
            if beside is not None:
                beside.kill()
        return None


class _Beside:
    """The process beside, from its owner's side."""

    def __init__(self, store: Store) -> None:
        ours, theirs = socket.socketpair()
        for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", ANSWER_SECONDS, 0))
        self._connection = Connection(ours.detach())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # A terminal's Ctrl-C is the owner's to handle.
            )
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.ready = False
        """True once it has imported its modules."""
        url = store.url.render_as_string(hide_password=False)
        self._connection.send_bytes(exact_json.dumps([url, store.blobs.url]))

    def take(self, data: bytes, team: str) -> Ingested | None:
        """Have a batch ingested. None: not ready yet, or it failed.

        Raises `OSError` or `EOFError` if the process has ended, or does not answer.
        """
        if not self.ready:
            if not self._connection.poll():
                return None
            self._connection.recv_bytes()
            self.ready = True
        self._connection.send_bytes(team.encode())
        self._connection.send_bytes(data)
        found = exact_json.loads(self._connection.recv_bytes())
        return None if found is None else Ingested(*found)

    def close(self) -> None:
        """End it."""
        self._connection.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def serve(owner: Connection) -> None:
    """Ingest the owner's batches until none comes for `IDLE_SECONDS`. Raises `OSError` or `EOFError` once the owner has ended, `StoreError` if the store cannot be opened."""
    url, blobs = exact_json.loads(owner.recv_bytes())
    store = Store(url, Blobs(blobs))
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    owner.send_bytes(b"ready")
    while owner.poll(IDLE_SECONDS):
        team, data = owner.recv_bytes().decode(), owner.recv_bytes()
        try:
            done = ingest(store, data, team)
        except Exception:  # The owner ingests it itself, and meets the error.
            owner.send_bytes(b"null")
        else:
            owner.send_bytes(exact_json.dumps([done.events, done.damaged]))


if __name__ == "__main__":
    # The owner has ended, or meets the store's error itself.
    with contextlib.suppress(OSError, EOFError, StoreError):
        serve(Connection(int(sys.argv[1])))
