"""Requests that the server makes at addresses which a team named: one client, held to real servers on loopback."""

import ast
import asyncio
import gzip
import socket
import threading
import tracemalloc
from pathlib import Path

import aiohttp
import pytest

import hud_dashboard
import hud_platform
from hud.outbound import AddressRefusedError, Reach, guarded_session, networks_of, read_bounded
from hud_integrations.vllm.server import Server, ServerLost, ServerRefused
from hud_platform.gateway.redaction import Redaction

PLATFORM = Path(hud_platform.__file__).parent
DASHBOARD = Path(hud_dashboard.__file__).parent
CLIENTS = {
    "AsyncClient",
    "ClientSession",
    "HTTPConnection",
    "HTTPSConnection",
    "create_connection",
    "open_connection",
    "snapshot_download",
    "url_to_fs",
    "urlopen",
    "urlretrieve",
}
"""Names whose call opens a connection."""
ELSEWHERE = {
    "hud_dashboard/local/server.py": "the pages of this process, without a socket",
    "routes/runtime.py": "an environment that this server started, at the address which it was given",
    "models/weight_sources.py": "the Hugging Face hub alone, without the server's token for other teams",
    "store/blobs.py": "the operator's own storage",
}
"""Files of the platform that connect without the guarded client, and where to."""


@pytest.mark.slow
def test_the_platform_connects_through_one_client():
    found = set()
    for path in (*PLATFORM.rglob("*.py"), *DASHBOARD.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func
                name = (
                    called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                )
                if name in CLIENTS or (name in ("get", "post", "request") and _is_module(called)):
                    root = PLATFORM if path.is_relative_to(PLATFORM) else DASHBOARD.parent
                    found.add(path.relative_to(root).as_posix())
    assert found == set(ELSEWHERE)


def _is_module(called):
    home = called.value if isinstance(called, ast.Attribute) else None
    return isinstance(home, ast.Name) and home.id in ("httpx", "requests", "aiohttp", "urllib3")


class Talker(threading.Thread):
    """A server on loopback that says something fixed to every connection; counts connections."""

    def __init__(self, said, host="127.0.0.1", drip=None):
        super().__init__(daemon=True)
        self.listening = socket.create_server((host, 0))
        self.port = self.listening.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self.said, self.drip = said, drip
        self.asked = 0
        self.over = threading.Event()
        self.start()

    def run(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.asked += 1
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection):
        with connection:
            try:
                connection.recv(65536)
                for part in self.said() if callable(self.said) else [self.said]:
                    if self.over.wait(self.drip or 0):
                        return
                    connection.sendall(part)
            except OSError:
                return

    def close(self):
        self.over.set()
        self.listening.close()


@pytest.fixture
def talk():
    made = []

    def begin(said, **options):
        made.append(Talker(said, **options))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def response(body, kind=b"application/json", *more):
    lines = [b"HTTP/1.1 200 OK", b"content-type: " + kind, *more]
    return b"\r\n".join(
        [*lines, b"content-length: %d" % len(body), b"connection: close", b"", body]
    )


async def test_a_resolver_that_changes_its_answer_leads_nowhere_else(talk, monkeypatch):
    """Each connection goes to the address that was checked: there is no second look-up in between."""
    inside, answers = talk(response(b"{}")), []
    resolve = socket.getaddrinfo

    def flap(host, port, *arguments, **more):
        if host == "flapping.example.com":
            answers.append("127.0.0.2" if len(answers) % 2 == 0 else "127.0.0.1")
            host = answers[-1]
        return resolve(host, port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", flap)
    url = f"http://flapping.example.com:{inside.port}"
    reach = Reach(networks=networks_of("127.0.0.2"))
    reach.check(url)  # As at the registration of an address.
    for _ in range(6):
        async with guarded_session(reach) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(url)
    assert answers.count("127.0.0.1") >= 3
    assert inside.asked == 0


async def test_of_several_addresses_those_out_of_reach_are_left_out(talk, monkeypatch):
    inside = talk(response(b"{}"))
    resolve = socket.getaddrinfo

    def both(host, port, *arguments, **more):
        if host != "both.example.com":
            return resolve(host, port, *arguments, **more)
        return [
            *resolve("127.0.0.1", port, *arguments, **more),
            *resolve("127.0.0.2", port, *arguments, **more),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    async with guarded_session(Reach(networks=networks_of("127.0.0.2"))) as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://both.example.com:{inside.port}")
    assert inside.asked == 0


async def test_a_redirection_that_is_followed_is_checked_again(talk):
    inside = talk(response(b"{}"))
    moved = b"HTTP/1.1 302 Found\r\nlocation: %s\r\ncontent-length: 0\r\n\r\n" % inside.url.encode()
    outside = talk(moved, host="127.0.0.2")
    async with guarded_session(Reach(networks=networks_of("127.0.0.2"))) as session:
        with pytest.raises(aiohttp.ClientConnectorError) as refused:
            await session.get(outside.url)
        assert isinstance(refused.value.os_error, AddressRefusedError)
        with pytest.raises(ServerRefused, match="redirection"):
            await Server(outside.url, session, "key").version()
    assert (outside.asked, inside.asked) == (2, 0)


async def test_a_proxy_of_the_server_s_environment_is_not_used(talk, monkeypatch):
    proxy, inside = talk(response(b"{}")), talk(response(b"{}"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    async with guarded_session(Reach(private=True)) as session:
        await session.get(inside.url)
    assert (proxy.asked, inside.asked) == (0, 1)


@pytest.mark.slow
async def test_a_packed_answer_is_bounded_by_what_it_becomes(talk):
    bomb = gzip.compress(bytes(64 << 20))
    packed = talk(response(bomb, b"application/json", b"content-encoding: gzip"))
    tracemalloc.start()
    try:
        async with (
            guarded_session(Reach(private=True)) as session,
            session.get(packed.url) as answer,
        ):
            with pytest.raises(aiohttp.ClientPayloadError, match="larger"):
                await read_bounded(answer, most=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20


def endless(head, piece):
    def parts():
        yield head
        while True:
            yield piece

    return parts


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def test_a_vllm_server_that_talks_on_after_its_end_fills_no_memory(talk):
    choice = b'{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [0]}, "finish_reason": "stop"}]}'
    said = STREAM + b"data: " + choice + b"\n\ndata: [DONE]\n\n"
    talker = talk(endless(said, b"x" * (1 << 20)))
    tracemalloc.start()
    try:
        async with guarded_session(Reach(private=True), read_bufsize=1 << 18) as session:
            pieces = [piece async for piece in Server(talker.url, session, None).stream({})]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pieces[-1].finish_reason == "stop"
    assert peak < 24 << 20


@pytest.mark.parametrize(
    "line",
    [
        b"data: [1, 2]\n\n",
        b'data: {"choices": [7]}\n\n',
        b'data: {"choices": 7}\n\n',
        b'data: {"choices": [{"token_ids": 7}]}\n\n',
        b'data: {"choices": [{"token_ids": [1], "logprobs": []}]}\n\n',
        b'data: {"usage": 7}\n\n',
        b"data: " + b"x" * (8 << 20) + b"\n\n",
        b"data: \xff\n\n",
        b'data: {"choices": [{"token_ids": ["x"], "logprobs": {"token_logprobs": ["y"]}}]}\n\n',
    ],
)
async def test_a_vllm_server_that_answers_nonsense_is_named(talk, line):
    talker = talk(STREAM + line)
    async with guarded_session(Reach(private=True), read_bufsize=1 << 18) as session:
        with pytest.raises((ServerLost, ServerRefused), match="127.0.0.1"):
            async for _ in Server(talker.url, session, None).stream({}):
                pass


@pytest.mark.parametrize(
    ("token", "logprob"),
    [
        ("-1", "0"),
        ("2147483648", "0"),
        ("1", "null"),
        ("1", '"0"'),
        ("1", "true"),
        ("1", "0.5e309"),
    ],
)
async def test_tokens_and_logprobs_that_are_none_are_its_fault(talk, token, logprob):
    choice = f'{{"token_ids": [{token}], "logprobs": {{"token_logprobs": [{logprob}]}}, "finish_reason": "stop"}}'
    talker = talk(STREAM + f'data: {{"choices": [{choice}]}}\n\ndata: [DONE]\n\n'.encode())
    async with guarded_session(Reach(private=True)) as session:
        with pytest.raises(ServerLost, match="127.0.0.1"):
            async for _ in Server(talker.url, session, None).stream({}):
                pass


async def test_an_answer_that_drips_ends_in_time(talk):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"
    talker = talk(endless(head, b" "), drip=0.1)
    async with guarded_session(Reach(private=True)) as session:
        with pytest.raises(ServerLost, match="in time"):
            async with asyncio.timeout(60):
                await Server(talker.url, session, None).health(0.5)


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_key_that_a_provider_repeats_is_removed_wherever_its_chunks_end(cut):
    secret, said = b"secret-key-1", b"data: your key is secret-key-1, secret-ke and secret-key-1"
    redaction = Redaction([secret])
    parts = [said[at : at + cut] for at in range(0, len(said), cut)]
    shown = b"".join([*map(redaction.take, parts), redaction.end()])
    assert secret not in shown
    assert shown == said.replace(secret, b"[redacted]")


def test_what_cannot_begin_a_key_is_passed_on_at_once():
    assert Redaction([b"secret"]).take(b"data: hello\n\n") == b"data: hello\n\n"
    assert Redaction([]).take(b"sec") == b"sec"
