"""The guarded HTTP client, for addresses that come from users, agents and other servers.

Each connection's resolved address is checked, so that neither redirects nor DNS rebinding reach internal networks. Checks
addresses only; the permission of a team is the platform's.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hud.errors import PlatformError, UsageError

if TYPE_CHECKING:
    import aiohttp

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

CONNECT_SECONDS = 10.0
MOST_ANSWER_BYTES = 64 << 20
"""Largest response that is read whole, in bytes."""

_METADATA = frozenset(
    map(ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"))
)
"""Addresses of cloud metadata services, which return a machine's credentials; not all are link-local."""
_NAT64 = ip_network("64:ff9b::/96")


class AddressRefusedError(OSError):
    """A connection to an address outside the caller's `Reach`."""


@dataclass(frozen=True)
class Reach:
    """Addresses that a caller may connect to through this process: public ones, and exceptions."""

    private: bool = False
    """Also loopback and private networks; never link-local addresses and cloud metadata."""
    networks: tuple[Network, ...] = ()
    """Further networks, allowed by the operator without exceptions."""

    def allows(self, text: str) -> bool:
        """Return True for an allowed address, given as sockets give it."""
        address = ip_address(text.partition("%")[0])
        if any(address in network for network in self.networks):
            return True
        inner = _inner(address)
        if inner is not None and not self.allows(str(inner)):
            return False
        if address in _METADATA or address.is_link_local or address.is_multicast:
            return False
        return self.private or _is_public(address)

    def check(self, url: str) -> None:
        """Raise `PlatformError` 403 for a URL that resolves to a forbidden address.

        A name that cannot be resolved passes: connections are checked, too. Raises `UsageError` for an invalid URL.
        """
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            _ = (
                parts.port,
                host.encode("idna"),
            )  # Ports out of range, and labels that are empty or too long.
        except ValueError as error:
            raise UsageError(f"{url!r} is no URL: {error}.") from None
        if not host:
            raise UsageError(f"{url!r} is no URL: it names no host.")
        try:
            addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for *_, address in addresses:
            if not self.allows(str(address[0])):
                raise PlatformError(
                    f"{url} leads to {address[0]}, which this server may not call for your team. Its operator may allow "
                    f"it: HUD_REACH={address[0]}",
                    403,
                )


def networks_of(text: str) -> tuple[Network, ...]:
    """Return the addresses and networks of a setting, separated by commas. Raises `UsageError` for anything else."""
    try:
        return tuple(
            ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()
        )
    except ValueError as error:
        raise UsageError(
            f"HUD_REACH holds addresses and networks such as 10.0.0.0/8, separated by commas: {error}."
        ) from None


def guarded_session(reach: Reach, **options: Any) -> aiohttp.ClientSession:
    """Return a client session whose connections are limited to `reach`. The caller handles redirects."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=60, socket_factory=partial(_open, reach)
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        **options,
    )


async def read_bounded(response: aiohttp.ClientResponse, most: int = MOST_ANSWER_BYTES) -> bytes:
    """Return the body of a response. Raises `aiohttp.ClientPayloadError` if it is larger than `most`."""
    import aiohttp

    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise aiohttp.ClientPayloadError(f"The answer is larger than {most >> 20} MiB.")
        parts.append(part)
    return b"".join(parts)


async def read_start(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the first `most` bytes of a body, or all of a shorter one; the rest is not read."""
    parts: list[bytes] = []
    left = most
    while left > 0 and (part := await response.content.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _open(reach: Reach, info: Any) -> socket.socket:
    family, kind, protocol, _, address = info
    if not reach.allows(str(address[0])):
        raise AddressRefusedError(
            "The address is one that this server may not call for its caller."
        )
    return socket.socket(family=family, type=kind, proto=protocol)


def _inner(address: Address) -> IPv4Address | None:
    """Return the IPv4 address embedded in an IPv6 address; None without one."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.is_site_local):
        return address.ipv4_mapped is not None  # Its own address was checked already.
    return address.is_global
