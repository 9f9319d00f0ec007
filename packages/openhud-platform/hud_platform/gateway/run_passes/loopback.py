"""Listener of an embedded platform: programs of this machine reach its gateway with run passes, and nothing else.

It serves the same application, in a thread with an event loop of its own: an agent may block its loop while its program runs.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from hud_platform.access.pass_door import PassDoor, refuse_others
from hud_platform.access.passes import Passes

LOOPBACK = "127.0.0.1"
END_SECONDS = 10.0
"""Time that open requests have when the listener ends."""


class Loopback:
    """Listener that is open from its first user to its last."""

    def __init__(self, app: Any, passes: Passes) -> None:
        self._app = PassDoor(app, passes, refuse_others)
        self._lock = threading.Lock()
        self._users = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._url = ""

    @contextmanager
    def opened(self) -> Iterator[str]:
        """Yield the URL of the listener; the first user starts it, and the last one ends it."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()
            url = self._url
        try:
            yield url
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._stop()

    def _start(self) -> None:
        listening = socket.create_server((LOOPBACK, 0), backlog=2048)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._url = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            self._app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(END_SECONDS),
        )
        self._server = server = uvicorn.Server(config)
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve([listening])),
            name="hud-run-passes",
            daemon=True,
        )
        self._thread = thread
        thread.start()

    def _stop(self) -> None:
        assert self._server is not None
        # Not joined: requests of a program that has been killed end by themselves.
        self._server.should_exit = True
        self._server = self._thread = None
