"""The HTTP proxy of a workspace's programs, which enforces the allowed hosts.

It resolves names itself, and connects to public addresses only, unless a host is allowed literally.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from hud.environment.streams import Stream, relay
from hud.environment.workspace.network.policy import IDLE_SECONDS

_WEB_PORTS = (80, 443)
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 prefix of translated IPv4 addresses (NAT64)."""
_OUR_OWN = ("proxy-", "connection:", "host:", "keep-alive:")


class _Refused(Exception):
    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class _Request:
    method: str
    host: str
    port: int
    head: bytes
    """Bytes to send to the server; empty for a tunnel."""


class Proxy:
    """A proxy with allowed hosts; None: all public hosts, on ports 80 and 443."""

    def __init__(self, allowed_hosts: Sequence[str] | None) -> None:
        self._rules = None if allowed_hosts is None else [_rule(text) for text in allowed_hosts]
        self._named: set[tuple[str, int]] = set()

    def allow(self, host: str, port: int) -> None:
        """Allow this exact host and port, public or not."""
        self._named.add((host.lower(), port))

    async def serve(self, stream: Stream) -> None:
        reader, writer = stream
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                request = _request(await reader.readuntil(b"\r\n\r\n"))
            outside = await self._connect(request)
        except _Refused as refused:
            words = f"{refused}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Length: {len(words)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + words)
            await writer.drain()
            return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            return
        if request.method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            outside[1].write(request.head)
        await relay(stream, outside, idle_seconds=IDLE_SECONDS)

    async def _connect(self, request: _Request) -> Stream:
        host, port = request.host, request.port
        exact = self._allows(host, port)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                loop = asyncio.get_running_loop()
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [str(info[4][0]) for info in infos]
                usable = [address for address in addresses if exact or _is_public(address)]
                if not usable:
                    raise _Refused("403 Forbidden", f"{host} is not on the public Internet.")
                # Connect to the checked address: a second look-up could return another.
                return await asyncio.open_connection(usable[0], port)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise _Refused(
                "502 Bad Gateway", f"{host}:{port} cannot be reached: {error}"
            ) from error

    def _allows(self, host: str, port: int) -> bool:
        """Return True if a rule names exactly this host; raises if it is not allowed."""
        if (host, port) in self._named:
            return True
        if self._rules is None:
            if port in _WEB_PORTS:
                return False
        else:
            matching = [
                pattern
                for pattern, ports in self._rules
                if port in ports and fnmatchcase(host, pattern)
            ]
            if matching:
                return host in matching
        raise _Refused("403 Forbidden", f"This sandbox may not reach {host}:{port}.")


def _rule(text: str) -> tuple[str, tuple[int, ...]]:
    host, _, port = text.rpartition(":")
    if host and port.isdigit():
        return host.lower().strip("[]"), (int(port),)
    return text.lower().strip("[]"), _WEB_PORTS


def _request(head: bytes) -> _Request:
    try:
        lines = head.decode("latin-1").split("\r\n")
        method, target, version = lines[0].split(" ")
        at = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host = (at.hostname or "").rstrip(".")
        port = at.port or 80
    except ValueError:
        raise _Refused("400 Bad Request", "This is no request for a proxy.") from None
    if (
        not host
        or not version.startswith("HTTP/1.")
        or (method != "CONNECT" and at.scheme != "http")
    ):
        raise _Refused("400 Bad Request", "This is no request for a proxy.")
    if method == "CONNECT":
        return _Request(method, host, port, b"")
    path = (at.path or "/") + (f"?{at.query}" if at.query else "")
    headers = [line for line in lines[1:] if line and not line.lower().startswith(_OUR_OWN)]
    # The checked host; one request per connection.
    ours = [
        f"{method} {path} HTTP/1.1",
        f"Host: {at.netloc.rpartition('@')[2]}",
        "Connection: close",
    ]
    return _Request(method, host, port, "\r\n".join([*ours, *headers, "", ""]).encode("latin-1"))


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None)
    if parsed.version == 6 and parsed in _TRANSLATED:
        inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    return parsed.is_global and not parsed.is_multicast and (inner is None or inner.is_global)
