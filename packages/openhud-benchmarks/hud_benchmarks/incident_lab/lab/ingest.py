"""The error tracker's ingestion endpoint: takes what the official `sentry-sdk` sends.

Speaks the envelope protocol: a line of header, then items, each a line of header and its payload.
https://develop.sentry.dev/sdk/data-model/envelopes/
"""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Ingest:
    """A server on loopback that keeps every item; `dsn` is the address for an SDK."""

    def __init__(self) -> None:
        self.items: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()
        ingest = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status = 200
                try:
                    received = list(items(_unpacked(body, self.headers.get("content-encoding"))))
                except ValueError:
                    received, status = [], 400
                with ingest._lock:
                    ingest.items.extend(received)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                return

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                return  # Services die in mid-sentence here; that is what the lab is for.

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.dsn = f"http://lab@127.0.0.1:{self._server.server_address[1]}/1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def taken(self, kind: str) -> list[dict[str, Any]]:
        """Return the payloads of one kind (`event`, `transaction`, ...), in order of arrival."""
        with self._lock:
            return [payload for name, payload in self.items if name == kind]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def items(envelope: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON items of an envelope with their types. Raises `ValueError` for what is none."""
    header, _, rest = envelope.partition(b"\n")
    json.loads(header)
    while rest.strip(b"\n"):
        head, _, rest = rest.lstrip(b"\n").partition(b"\n")
        described = json.loads(head)
        if "length" in described:
            payload, rest = rest[: described["length"]], rest[described["length"] :]
        else:
            payload, _, rest = rest.partition(b"\n")
        if payload.startswith(b"{"):
            yield str(described.get("type")), json.loads(payload)


def _unpacked(body: bytes, encoding: str | None) -> bytes:
    try:
        if encoding == "gzip":
            return gzip.decompress(body)
        if encoding == "deflate":
            return zlib.decompress(body)
    except (OSError, zlib.error) as error:
        raise ValueError(str(error)) from error
    if encoding in (None, "", "identity"):
        return body
    raise ValueError(f"unknown encoding {encoding!r}")
