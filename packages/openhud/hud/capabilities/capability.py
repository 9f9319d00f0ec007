"""`Capability`: a service of an environment with its own protocol, and `CapabilityClient`, its client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from hud.errors import EnvironmentFault

SSH = "ssh/2"
MCP = "mcp/2025-11-25"
CDP = "cdp/1.3"
RFB = "rfb/3.8"
ROBOT = "openpi/0"
FILE_TRACKING = "filetracking/1"
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443, "ssh": 22, "rfb": 5900, "cdp": 9222}


@dataclass(frozen=True)
class Capability:
    """Name, protocol and address (on the environment's machine) of a service for agents."""

    name: str
    protocol: str
    """Name and version, such as `ssh/2`."""
    url: str
    params: dict[str, Any] = field(default_factory=dict)
    """Further connection parameters: keys, passwords, the size of a screen."""

    @classmethod
    def ssh(cls, name: str = "shell", *, url: str, **params: Any) -> Capability:
        """A shell and files: `user`, `host_pubkey`, `client_key`, `shell`, `cwd`."""
        return cls(name, SSH, url, params)

    @classmethod
    def mcp(cls, name: str = "tools", *, url: str, **params: Any) -> Capability:
        """A server of the Model Context Protocol: `transport`, `auth_token`."""
        return cls(name, MCP, url, params)

    @classmethod
    def cdp(cls, name: str = "browser", *, url: str, **params: Any) -> Capability:
        """A browser over the Chrome DevTools Protocol: `target_id`."""
        return cls(name, CDP, url, params)

    @classmethod
    def rfb(cls, name: str = "screen", *, url: str, **params: Any) -> Capability:
        """A desktop over the Remote Framebuffer protocol: `display`, `password`."""
        return cls(name, RFB, url, params)

    @classmethod
    def robot(cls, name: str = "robot", *, url: str, **params: Any) -> Capability:
        """A robot: `contract`."""
        return cls(name, ROBOT, url, params)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the URL, `scheme://host:port` or `host:port`; without a port, the scheme's default.

        Raises `EnvironmentFault` without a host or port.
        """
        try:
            place = urlsplit(self.url if "//" in self.url else f"//{self.url}")
            host, port = place.hostname, place.port or _PORTS.get(place.scheme)
        except ValueError:
            host = port = None
        if host is None or port is None:
            raise EnvironmentFault(
                f"{self.name!r} has no address to connect to: {self.url!r} names no host and port."
            )
        return host, port

    def to_manifest(self) -> dict[str, Any]:
        """Return the binding that `hello` announces."""
        return {
            "name": self.name,
            "protocol": self.protocol,
            "url": self.url,
            "params": self.params,
        }

    @classmethod
    def from_manifest(cls, binding: dict[str, Any]) -> Capability:
        """Return the capability of a binding; raises `EnvironmentFault` for an invalid one."""
        try:
            return cls(
                str(binding["name"]),
                str(binding["protocol"]),
                str(binding["url"]),
                dict(binding.get("params") or {}),
            )
        except (KeyError, TypeError, ValueError):
            raise EnvironmentFault(
                f"The environment announces a capability that cannot be read: {str(binding)[:200]}."
            ) from None


class CapabilityClient(ABC):
    """A connection to one capability."""

    protocol: ClassVar[str]

    @classmethod
    @abstractmethod
    async def connect(cls, capability: Capability) -> Self:
        """Connect to `capability.url`, an address reachable from this machine."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect, and free the connection's resources."""
