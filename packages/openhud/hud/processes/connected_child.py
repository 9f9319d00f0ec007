"""`ConnectedChild`: a child process that exchanges messages with this one.

Its standard input is a socket with the frames of `multiprocessing.connection`: 4 bytes of length, then the message.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from hud.processes.child import Child

EXIT_SECONDS = 1.0
"""Time for a process to exit by itself after it has closed its connection, in seconds."""


class ChildEnded(Exception):
    """The process ended during an exchange of messages."""

    def __init__(self, status: int, *, late: bool) -> None:
        super().__init__(f"The process ended with status {status}.")
        self.status = status
        self.late = late
        """True if it was killed because the exchange took too long."""


class ConnectedChild(Child):
    """A child with a `connection`, which ends when either process does: read what it sent before its end, then close it."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """`options`: those of `Child`."""
        self.connection, theirs = Pipe()
        try:
            super().__init__(command, stdin=theirs.fileno(), **options)
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()

    @contextmanager
    def exchange(self, seconds: float) -> Iterator[Connection]:
        """Yield the connection for messages that take at most `seconds`, such as a handshake; then kill the process.

        Raises `ChildEnded` where the process ends before, also in the middle of a message. Blocks.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.kill()

        limit = threading.Timer(seconds, expire)
        limit.daemon = True
        limit.start()
        try:
            yield self.connection
        except (EOFError, OSError) as error:
            raise ChildEnded(self.reap(EXIT_SECONDS), late=expired.is_set()) from error
        finally:
            limit.cancel()


def connection_to_parent() -> Connection:
    """Return a `ConnectedChild`'s own side; its standard input is empty from then on, for its children."""
    connection = Connection(os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return connection
