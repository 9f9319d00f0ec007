"""The guarded HTTP client: everything that this process fetches at an address which somebody else named.

An address is checked when a connection to it is opened, whatever name led there and however often it is resolved, so that
neither redirects nor names that change lead inside. Knows addresses; who may name which is the platform's.
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
"""Of an answer that is read whole."""

_METADATA = frozenset(
    map(ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"))
)
"""Metadata addresses at which clouds hand out a machine's credentials; not all are link-local."""
_NAT64 = ip_network("64:ff9b::/96")


class AddressRefusedError(OSError):
    """A connection to an address that its caller may not have this process call."""


@dataclass(frozen=True)
class Reach:
    """Addresses that a caller may have this process call: public ones, and more."""

    private: bool = False
    """Also loopback and private networks; link-local addresses and those of clouds' metadata never are."""
    networks: tuple[Network, ...] = ()
    """Networks that the operator allows, whatever they are."""

    def allows(self, text: str) -> bool:
        """True for an address, as a socket has it, that may be called."""
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
        """Raise `PlatformError` 403 for a URL that leads to an address which may not be called.

        A name that cannot be resolved passes: connections are checked, too. Raises `UsageError` for what is no URL.
        """
        try:
            host = urlsplit(url).hostname or ""
        except ValueError as error:
            raise UsageError(f"{url!r} is no URL: {error}.") from None
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for *_, address in found:
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
    """Return a client session whose connections keep to `reach`. Redirects are its caller's to refuse."""
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=60, socket_factory=partial(_open, reach)
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        **options,
    )


async def read_bounded(response: aiohttp.ClientResponse, most: int = MOST_ANSWER_BYTES) -> bytes:
    """Return the body of an answer. Raises `aiohttp.ClientPayloadError` for a larger one."""
    import aiohttp

    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise aiohttp.ClientPayloadError(f"The answer is larger than {most >> 20} MiB.")
        parts.append(part)
    return b"".join(parts)


def _open(reach: Reach, info: Any) -> socket.socket:
    family, kind, protocol, _, address = info
    if not reach.allows(str(address[0])):
        raise AddressRefusedError(
            "The address is one that this server may not call for its caller."
        )
    return socket.socket(family=family, type=kind, proto=protocol)


def _inner(address: Address) -> IPv4Address | None:
    """Return the address that one of IPv6 stands for."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.is_site_local):
        return address.ipv4_mapped is not None  # Whose own address was looked at already.
    return address.is_global
