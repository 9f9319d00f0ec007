"""HTTP connections of a server with bounds: time for a head and a body, bytes of a head, and a number of connections.

Uvicorn alone waits without end for a request that was begun, and takes connections until the process has no files left.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

RESERVED_FILES = 256
"""File descriptors kept for the database, blobs, engines and workers."""
MOST_FILES = 16_384
"""Soft limit on file descriptors that a server asks for."""


@dataclass(frozen=True)
class Bounds:
    """Limits of one server's connections. Times are in seconds."""

    connections: int = 4096
    head_seconds: float = 10.0
    """From the first byte of a request (or the connection's start) to the end of its headers."""
    head_bytes: int = 64 << 10
    """Request line and headers; also trailers, and whatever else is no body."""
    body_grace: float = 20.0
    """Time for a body of any length, to which each `body_rate` bytes add one second."""
    body_rate: float = 1024.0
    """Slowest body, in bytes per second. Time in which the server itself does not read is not counted."""
    linger: float = 5.0
    """For the rest of a body whose request was already answered."""
    write_seconds: float = 300.0
    """For a client that reads nothing of its answer."""
    idle_seconds: int = 120
    """Keep-alive: longer than the common clients and proxies keep an idle connection (Go: 90)."""
    look: float = 1.0
    """Between two looks at one connection."""


def allowed_connections(wanted: int) -> int:
    """Return how many connections this process can hold, at most `wanted`; raises its limit on open files first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        aim = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if aim > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
            soft = aim
        wanted = min(wanted, max(16, soft - RESERVED_FILES))
    return wanted


def bounded_http(bounds: Bounds) -> type[asyncio.Protocol]:
    """Return the protocol class of one server, for `uvicorn.Config(http=...)`."""
    return type("BoundedHttp", (_BoundedHttp,), {"bounds": bounds, "waiting": {}})


class _BoundedHttp(HttpToolsProtocol):
    """One connection. A timer looks at it once in a while; a request itself sets none."""

    bounds: Bounds
    waiting: dict[_BoundedHttp, None]
    """Connections of this server without a request under way, the one that waits longest first."""

    _began: float | None = None
    """Time at which the incoming head or body began; None between two requests."""
    _in_body = False
    _unread = 0
    """Bytes that came since the last that were part of a body."""
    _body_bytes = 0
    _answered: float | None = None
    _blocked: float | None = None
    """Since when the client reads nothing of its answer."""
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections and not self._make_room():
            self._refuse(503, "The server has as many connections as it takes; try again.")
            return
        self._began = self.loop.time()
        self.waiting[self] = None
        self._watch = self.loop.call_later(self.bounds.look, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._began is None:
            self._began = self.loop.time()
        self._unread += len(data)
        super().data_received(data)
        if self._unread > self.bounds.head_bytes and not self.transport.is_closing():
            self._refuse(431, "The head of the request is too large.")

    def on_message_begin(self) -> None:
        self._began = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.waiting.pop(self, None)
        self._began = self.loop.time()
        self._answered = None
        self._in_body = True
        self._unread = self._body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        self._in_body = False
        self._began = None
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            # Answered before the body was whole: its last bytes stopped uvicorn's timer of idle connections.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self.waiting[self] = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete or self.transport.is_closing():
            return  # A pipelined request is next.
        if self._in_body:
            self._answered = self.loop.time()
        else:
            self.waiting[self] = None

    def handle_websocket_upgrade(self) -> None:
        self._forget()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        self._blocked = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._blocked = None
        super().resume_writing()

    def _look(self) -> None:
        """Close the connection where it is late, or look again later."""
        now = self.loop.time()
        if self.transport.is_closing() and self._blocked is None:
            self._blocked = now  # What is written last may never be read.
        if self._late(now):
            self.transport.abort()
            return
        self._watch = self.loop.call_later(self.bounds.look, self._look)

    def _late(self, now: float) -> bool:
        bounds = self.bounds
        if self._blocked is not None and now - self._blocked > bounds.write_seconds:
            return True
        if self._began is None:
            return False
        if not self._in_body:
            answering = self.cycle is not None and not self.cycle.response_complete
            return not answering and now - self._began > bounds.head_seconds
        if self._answered is not None:
            return now - self._answered > bounds.linger
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._began += bounds.look  # The server makes the client wait.
        return now - self._began > bounds.body_grace + self._body_bytes / bounds.body_rate

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for a request; False where every one has a request."""
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        del self.waiting[oldest]
        oldest.transport.abort()
        return True

    def _refuse(self, status: int, said: str) -> None:
        if self.cycle is None or self.cycle.response_complete:
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n"
            self.transport.write(
                STATUS_LINE[status] + head % len(said) + b"\r\n" + said.encode("ascii")
            )
            self.transport.close()
        else:
            self.transport.abort()

    def _forget(self) -> None:
        self.waiting.pop(self, None)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


def settings_of(bounds: Bounds) -> dict[str, Any]:
    """Return the arguments of `uvicorn.Config` that keep to `bounds`."""
    return {"http": bounded_http(bounds), "timeout_keep_alive": bounds.idle_seconds}
