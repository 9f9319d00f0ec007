"""Connections that are begun and never finished do not keep others out of the server."""

import asyncio
import contextlib
import socket
import threading
import time

import httpx
import pytest
import uvicorn
from tests.fleet.live_server import LiveServer

from hud_platform.process.http_connections import Bounds, settings_of

pytestmark = pytest.mark.timeout(120)

MOST = 64
HALF = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: "


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = LiveServer(
        tmp_path_factory.mktemp("c") / "home", "--workers", "0", "--connections", str(MOST)
    )
    made.start()
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def idle(server):
    """A connection that made one request when the module began."""
    with connect(server.port) as used:
        ask(used)
        yield used, time.monotonic()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def received(connection, end):
    """Return what the server sent up to `end`; heads and bodies may come in packets of their own."""
    said = b""
    while not said.endswith(end):
        piece = connection.recv(4096)
        assert piece, f"the server closed the connection after {said!r}"
        said += piece
    return said


def ask(connection):
    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    return received(connection, b'"ok"}')


@pytest.mark.slow
def test_a_connection_is_reused_after_the_idle_time_of_common_clients(idle):
    used, since = idle
    time.sleep(
        max(0.0, since + 6.0 - time.monotonic())
    )  # Clients' own limits are 4 s, 5 s and more.
    assert ask(used).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_hundreds_of_half_open_requests_leave_the_server_reachable(server):
    with contextlib.ExitStack() as stack:
        for _ in range(5 * MOST):
            stack.enter_context(attacker := connect(server.port))
            attacker.sendall(HALF)
        for _ in range(5):
            assert httpx.get(f"{server.url}/healthz", timeout=5).status_code == 200
        with server.client() as api:
            assert api.get("/v2/jobs").status_code == 200


def test_half_open_bodies_leave_the_server_reachable(server):
    head = b"POST /auth/device/code HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(MOST - 8):
            stack.enter_context(attacker := connect(server.port))
            attacker.sendall(head + b"content-length: 40\r\n\r\n{")
        assert httpx.get(f"{server.url}/healthz", timeout=5).status_code == 200


def test_a_head_without_end_is_refused(server):
    with connect(server.port) as attacker:
        sent = 0
        with contextlib.suppress(ConnectionError):
            attacker.sendall(HALF)
            while sent < 16 << 20:
                sent += attacker.send(b"x" * 65536)
        assert sent < 16 << 20  # The kernel holds a few MiB between two sockets.


async def echo(scope, receive, send):
    """Answer with the length of the body; `/early` answers before it comes, `/large` with more than sockets hold."""
    size = 0
    while scope["path"] != "/early":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    body = bytes(64 << 20) if scope["path"] == "/large" else b"%d" % size
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def hasty():
    """Port of a server whose times are short."""
    bounds = Bounds(
        connections=100,
        head_seconds=0.4,
        body_grace=0.4,
        body_rate=1000,
        linger=0.2,
        look=0.05,
        write_seconds=0.5,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(echo, log_level="error", lifespan="off", **settings_of(bounds))
    running = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve([listener])))
    thread.start()
    yield listener.getsockname()[1]
    running.should_exit = True
    thread.join(20)


def ended(connection):
    """Wait for the server to close a connection; return what it sent before."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(4096):
            said += piece
    return said


POST = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        HALF,
        POST % (b"/", 100) + b"abc",
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
        POST % (b"/early", 100) + b"abc",
    ],
    ids=["nothing", "line", "header", "body", "chunks", "answered"],
)
def test_a_request_that_never_ends_is_given_up(hasty, sent):
    with connect(hasty) as attacker:
        attacker.sendall(sent)
        ended(attacker)


def test_an_idle_connection_cannot_be_held_by_empty_lines(hasty):
    with connect(hasty) as attacker:
        attacker.sendall(POST % (b"/", 1) + b"x")
        received(attacker, b"\r\n\r\n1")
        attacker.sendall(b"\r\n")
        assert ended(attacker) == b""


def test_a_request_that_drips_is_given_up(hasty):
    with connect(hasty) as attacker, pytest.raises(ConnectionError):
        attacker.sendall(POST % (b"/", 100_000))
        for _ in range(2_000):
            attacker.sendall(b"x")
            time.sleep(0.01)


@pytest.mark.slow
def test_a_client_that_reads_nothing_of_its_answer_is_left(hasty):
    with connect(hasty) as attacker:
        attacker.sendall(POST % (b"/large", 1) + b"x")
        time.sleep(3)
        assert len(ended(attacker)) < 64 << 20


def test_a_slow_request_that_keeps_coming_is_answered(hasty):
    with connect(hasty) as slow:
        slow.sendall(POST % (b"/", 20_000))
        for _ in range(20):
            slow.sendall(b"x" * 1000)
            time.sleep(0.04)
        assert received(slow, b"20000").endswith(b"\r\n\r\n20000")


def test_requests_in_one_packet_are_answered_in_order(hasty):
    with connect(hasty) as client:
        client.sendall(b"".join(POST % (b"/", n) + b"x" * n for n in (3, 5, 7)))
        said = received(client, b"\r\n\r\n7")
        assert [part[:1] for part in said.split(b"\r\n\r\n")[1:]] == [b"3", b"5", b"7"]
