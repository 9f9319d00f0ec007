"""Network of a run's browser: the public web through a proxy, and local ports named by its environment.

The browser's network namespace has a loopback only, as a workspace's. Sites of this machine or of a private network are
reachable if the environment names host and port: in `start_url`, in `hosts`, or by `goto`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from hud.environment.workspace.network.open_network import Listens, OpenNetwork
from hud.environment.workspace.network.policy import LOOPBACK, PROXY_PORT
from hud.environment.workspace.network.proxy import Proxy
from hud.errors import EnvironmentFault

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_FIRST_PORT = 1024
"""Lowest port that an unprivileged process can bind, inside the sandbox, for a port of this machine."""


class BrowserNetwork:
    """Outgoing connections of a browser's sandbox; `hosts` are the declared ones, None: all public ones."""

    def __init__(self, hosts: Sequence[str] | None) -> None:
        self._hosts = hosts
        outside = None if hosts is None else [host for host in hosts if not _of_this_machine(host)]
        self._proxy = None if outside == [] else Proxy(outside)
        self._named: set[tuple[str, int]] = set()
        self._network: OpenNetwork | None = None

    @property
    def flags(self) -> list[str]:
        flags = []
        if self._proxy is not None:
            flags.append(f"--proxy-server=http://{LOOPBACK}:{PROXY_PORT}")
        if self._hosts is not None:
            # All other names and addresses are unreachable.
            names = {_host(host) for host in self._hosts}
            names |= {LOOPBACK} if self._proxy is not None else set()
            excluded = "".join(f", EXCLUDE {name}" for name in sorted(names))
            flags.append(f"--host-resolver-rules=MAP * ~NOTFOUND{excluded}")
        return flags

    async def open(self, program: Listens) -> None:
        """Open the declared connections."""
        self._network = OpenNetwork(program)
        if self._proxy is not None:
            await self._network.serve(LOOPBACK, PROXY_PORT, self._proxy.serve)
        for host in self._hosts or ():
            name, _, port = host.rpartition(":")
            if name and port.isdigit() and _of_this_machine(host):
                await self._reach(name, int(port))

    async def name(self, url: str) -> None:
        """Allow host and port of a URL of the environment itself, if `hosts` include it."""
        try:
            at = urlsplit(url)
            port = at.port or _PORTS.get(at.scheme)
        except ValueError:
            return  # The browser reports the invalid URL.
        if not at.hostname or port is None:
            return
        declared = self._hosts is None or any(
            _host(host) == at.hostname.lower() for host in self._hosts
        )
        if not declared:
            return
        if _of_this_machine(at.hostname):
            await self._reach(at.hostname, port)
        elif self._proxy is not None:
            self._proxy.allow(at.hostname, port)

    async def close(self) -> None:
        if self._network is not None:
            await self._network.close()

    async def _reach(self, host: str, port: int) -> None:
        """Forward a loopback port of the sandbox to the same port of this machine."""
        address = LOOPBACK if host.lower() == "localhost" else host.strip("[]")
        if (address, port) in self._named or self._network is None:
            return
        if port < _FIRST_PORT:
            raise EnvironmentFault(
                f"A browser reaches ports of this machine from {_FIRST_PORT} on, not {host}:{port}; serve the site there."
            )
        self._named.add((address, port))
        await self._network.connect(port, address, port, inside=address)


def _host(text: str) -> str:
    """Return the host name of an entry of `hosts`."""
    name, _, port = text.rpartition(":")
    return (name if name and port.isdigit() else text).lower()


def _of_this_machine(text: str) -> bool:
    host = _host(text).strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network("127.0.0.0/8")
    except (ValueError, TypeError):
        return False
