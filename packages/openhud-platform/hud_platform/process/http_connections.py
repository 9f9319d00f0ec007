"""HTTP connections with limits: time for headers and body, size of headers, and number of connections.
Uvicorn alone waits forever for the rest of a request, and accepts connections until the process is out of files.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

RESERVED_FILES = 256
"""File descriptors reserved for the database, blobs, engines and workers."""
MOST_FILES = 16_384
"""Soft limit on file descriptors that a server requests."""


@dataclass(frozen=True)
class Bounds:
    """Limits of one server's connections. Times are in seconds."""

    connections: int = 4096
    head_seconds: float = 10.0
    """Time from the first byte of a request (or the connection's start) to the end of its headers."""
    head_bytes: int = 64 << 10
    """Maximum size of request line and headers; also of trailers and other bytes outside the body."""
    body_grace: float = 20.0
    """Base time for a body; every `body_rate` bytes add one second."""
    body_rate: float = 1024.0
    """Minimum rate of a body, in bytes per second. Time in which the server does not read is not counted."""
    linger: float = 5.0
    """Time for the rest of a body after the response was sent."""
    write_seconds: float = 300.0
    """Maximum time without progress in sending a response."""
    idle_seconds: int = 120
    """Keep-alive time-out: longer than those of common clients and proxies (Go: 90)."""
    look: float = 1.0
    """Interval between two checks of a connection."""


def allowed_connections(wanted: int) -> int:
    """Return the number of connections this process can hold, at most `wanted`, after increasing its limit on open files."""
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
    """One connection. A periodic timer checks its limits, instead of a timer for each request."""

    bounds: Bounds
    waiting: dict[_BoundedHttp, None]
    """Idle connections of this server, the longest idle first."""

    _began: float | None = None
    """Time at which the incoming head or body began; None between two requests."""
    _in_body = False
    _unread = 0
    """Bytes received since the last part of a body."""
    _body_bytes = 0
    _answered: float | None = None
    _blocked: float | None = None
    """Time since which writing is blocked, because the client does not read."""
    _watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections and not self._make_room():
            self._refuse(503, "The server has reached its limit of connections; try again.")
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
            # The response was sent before the end of the body, whose last bytes stopped uvicorn's keep-alive timer.
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
        """Close the connection if a time limit is exceeded, or schedule the next check."""
        now = self.loop.time()
        if self.transport.is_closing() and self._blocked is None:
            self._blocked = now  # The client may never read the last bytes.
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
            self._began += bounds.look  # The server itself paused reading.
        return now - self._began > bounds.body_grace + self._body_bytes / bounds.body_rate

    def _make_room(self) -> bool:
        """Close the longest idle connection; returns False if there is none."""
        oldest = next(iter(self.waiting), None)
        if oldest is None:
            return False
        del self.waiting[oldest]
        oldest.transport.abort()
        return True

    def _refuse(self, status: int, sentence: str) -> None:
        if self.cycle is None or self.cycle.response_complete:
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n"
            self.transport.write(
                STATUS_LINE[status] + head % len(sentence) + b"\r\n" + sentence.encode("ascii")
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
    """Return the arguments of `uvicorn.Config` for `bounds`."""
    return {"http": bounded_http(bounds), "timeout_keep_alive": bounds.idle_seconds}
