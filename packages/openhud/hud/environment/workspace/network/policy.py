"""Network policy of a workspace: no access, except to named services and, if allowed, to the web through a proxy.

The network namespace has a loopback only. For allowed destinations this process listens on that loopback and connects from
outside, so that the workspace sends no packets itself; names are resolved outside, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hud.errors import UsageError

LOOPBACK = "127.0.0.1"
PROXY_PORT = 3128
IDLE_SECONDS = 600.0
"""Idle time-out of a connection, in seconds."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")


@dataclass(frozen=True)
class Peer:
    """A service reachable from this machine, available in a workspace as `name:port`."""

    name: str
    port: int
    target: str | None = None
    """Address outside, as `host:port`; None: the same port of this machine's loopback."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == "localhost":
            raise UsageError(
                f"A peer's name must be a host's name in lower case, not {self.name!r}."
            )
        if not 1024 <= self.port < 65536:
            raise UsageError(
                f"Peer {self.name!r}: its port must be from 1024 to 65535, not {self.port}; its target may have any."
            )
        _ = self.address

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the target. Raises `UsageError` for a target that is not `host:port`."""
        if self.target is None:
            return LOOPBACK, self.port
        host, _, port = self.target.rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(
                f"Peer {self.name!r}: its target must be host:port, not {self.target!r}."
            )
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Network:
    """Network policy: web access and peers."""

    web: bool = False
    allowed_hosts: tuple[str, ...] | None = None
    """Web hosts: names or patterns (`*.example.org`), with a port or for 80 and 443; None: all public hosts."""
    peers: tuple[Peer, ...] = ()

    def __post_init__(self) -> None:
        if self.allowed_hosts is not None and not self.web:
            raise UsageError(
                "allowed_hosts says what of the network is allowed; give network=True, too."
            )
        names = [peer.name for peer in self.peers]
        if len(set(names)) < len(names):
            raise UsageError("The peers of a workspace must have names of their own.")

    def variables(self) -> dict[str, str]:
        """Return the proxy's environment variables."""
        if not self.web:
            return {}
        proxy = f"http://{LOOPBACK}:{PROXY_PORT}"
        unproxied = ",".join(["localhost", LOOPBACK, *(peer.name for peer in self.peers)])
        lower_case = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": unproxied}
        return {**lower_case, **{name.upper(): value for name, value in lower_case.items()}}

    def hosts(self) -> dict[str, str]:
        """Return the peers' addresses inside, by name: one each, so that two peers can have the same port."""
        return {peer.name: f"127.0.1.{number}" for number, peer in enumerate(self.peers, 1)}
