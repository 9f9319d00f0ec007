"""An HTTP proxy that a workspace's programs go to the web by: it decides where they may go, and connects for them.

It looks names up itself, and connects to nothing but the public Internet, unless a host is named in so many words.
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
"""Addresses of version 4 behind a translator."""
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
    """Bytes for the server; empty for a tunnel."""


class Proxy:
    """Decides by the hosts that are allowed; None: all that are public, on the web's ports."""

    def __init__(self, allowed_hosts: Sequence[str] | None) -> None:
        self._rules = None if allowed_hosts is None else [_rule(text) for text in allowed_hosts]
        self._named: set[tuple[str, int]] = set()

    def allow(self, host: str, port: int) -> None:
        """Let this very host and port be reached, too, be they public or not."""
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
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [str(one[4][0]) for one in found]
                usable = [one for one in addresses if exact or _is_public(one)]
                if not usable:
                    raise _Refused("403 Forbidden", f"{host} is not on the public Internet.")
                # The address that was judged, and no second look-up, which could say something else.
                return await asyncio.open_connection(usable[0], port)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise _Refused(
                "502 Bad Gateway", f"{host}:{port} cannot be reached: {error}"
            ) from error

    def _allows(self, host: str, port: int) -> bool:
        """Return whether a rule names this very host; raises where it may not be reached."""
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
    kept = [line for line in lines[1:] if line and not line.lower().startswith(_OUR_OWN)]
    # The host that was judged; one request for each connection.
    ours = [
        f"{method} {path} HTTP/1.1",
        f"Host: {at.netloc.rpartition('@')[2]}",
        "Connection: close",
    ]
    return _Request(method, host, port, "\r\n".join([*ours, *kept, "", ""]).encode("latin-1"))


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None)
    if found.version == 6 and found in _TRANSLATED:
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast and (inner is None or inner.is_global)
