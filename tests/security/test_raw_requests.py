"""Bytes that are no request, or that two servers would read differently, are refused, and the server goes on."""

import contextlib
import socket

import pytest
from tests.fleet.live_server import LiveServer

HOST = b"host: x\r\n"
JSON = b"content-type: application/json\r\n"
SMUGGLED = b"GET /v2/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
TWO_LENGTHS = b"content-length: 5\r\ncontent-length: 6\r\n"

REFUSED = {
    "noise": bytes(range(256)) * 8,
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown version": b"GET /healthz HTTP/9.9\r\n" + HOST + b"\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: a\r\n b\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nhost : x\r\n\r\n",
    "a bare line feed in a name": b"GET /healthz HTTP/1.1\r\nho\nst: x\r\n\r\n",
    "a method that is none": b"G\xffT /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "a length and chunks": b"POST /v2/jobs HTTP/1.1\r\n"
    + HOST
    + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "two lengths": b"POST /v2/jobs HTTP/1.1\r\n" + HOST + TWO_LENGTHS + b"\r\nhello" + SMUGGLED,
    "a negative length": b"POST /v2/jobs HTTP/1.1\r\n" + HOST + b"content-length: -5\r\n\r\nhello",
    "a length with a sign": b"POST /v2/jobs HTTP/1.1\r\n"
    + HOST
    + b"content-length: +5\r\n\r\nhello",
    "a length that overflows": b"POST /v2/jobs HTTP/1.1\r\n"
    + HOST
    + b"content-length: 99999999999999999999999\r\n\r\n",
    "chunks not last": b"POST /v2/jobs HTTP/1.1\r\n"
    + HOST
    + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "a chunk of no size": b"POST /v2/jobs HTTP/1.1\r\n"
    + HOST
    + b"transfer-encoding: chunked\r\n\r\nxyz\r\n\r\n",
    "a chunk that overflows": b"POST /v2/jobs HTTP/1.1\r\n"
    + HOST
    + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "a head without end": b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 20_000,
    "an address without end": b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
}
"""Answered 4xx or not at all, and the connection is closed."""
ODD = {
    "an absolute address": b"GET http://evil.example/healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n",
    "a tunnel": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nhost: 127.0.0.1:22\r\nconnection: close\r\n\r\n",
    "a trace": b"TRACE /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "dots": b"GET /docs/../../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "dots in code": b"GET /static/x/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "half a socket": b"GET /v2/builds/x/logs HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "a socket of another version": b"GET /runtime/tunnels/x HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 99\r\nsec-websocket-key: x\r\n\r\n",
    "an upgrade to nothing": b"GET /healthz HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, close\r\n\r\n",
    "an expectation": b"POST /auth/device/code HTTP/1.1\r\nhost: x\r\nexpect: magic\r\ncontent-length: 2\r\n"
    + JSON
    + b"connection: close\r\n\r\n{}",
}
"""Answered with a status below 500, and no file's content."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = LiveServer(tmp_path_factory.mktemp("raw") / "home", "--workers", "0")
    made.start()
    yield made
    assert made.stop() == 0


def said(server, request, whole=True):
    """Send bytes and return what the server says until it closes the connection.

    With `whole` False the request may be an unfinished one, for whose rest the server waits 10 s; this side ends earlier.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        found = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            connection.settimeout(30 if whole else 1)
            with contextlib.suppress(TimeoutError if not whole else ()):
                while piece := connection.recv(65536):
                    found += piece
        return found


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_request_is_refused_once(server, kind):
    answer = said(server, REFUSED[kind], whole=False)
    statuses = [line for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    assert len(statuses) <= 1, answer[:300]
    assert all(line.split()[1].startswith(b"4") for line in statuses), answer[:300]
    assert b"Traceback" not in answer
    assert b"smuggled" not in answer


@pytest.mark.parametrize("kind", ODD)
def test_odd_requests_are_answered_below_500(server, kind):
    answer = said(server, ODD[kind])
    status = int(answer.split(b" ", 2)[1])
    assert status < 500 or status == 501, answer[:300]
    assert b"root:" not in answer
    assert b"Traceback" not in answer
    with server.client() as api:
        assert api.get("/v2/jobs").status_code == 200
