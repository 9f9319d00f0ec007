"""`hud.connect`: a served environment by hand, one request after another, and what it offers to connect to.

    async with hud.connect(Runtime("tcp://127.0.0.1:8765")) as client:
        prompt = await client.start_task("count", {"word": "tree"})
        shell = await client.open("ssh")
        print(await client.grade({"answer": "4"}))

Rollouts do this by themselves (`hud.eval`); here nothing is recorded, limited or repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from hud.capabilities import Capability, CapabilityClient
from hud.environment.channel import RemoteConnection
from hud.environment.channel.client.tunnels import Tunnels
from hud.environment.channel.framing import ChannelError
from hud.errors import HudError, NotFoundError, RolloutError, UsageError
from hud.eval.runtimes.capability_clients import connect_client
from hud.eval.runtimes.remote import Runtime

READY_SECONDS = 240.0
_BAD_ANSWER = -32603
T = TypeVar("T")


class HudProtocolError(HudError):
    """The environment answered with an error: `code` as JSON-RPC and the control channel have it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"The environment answered with error {code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True)
class ServerInfo:
    """Identity of the environment."""

    name: str
    version: str


@dataclass(frozen=True)
class Manifest:
    """Manifest of the environment."""

    session_id: str
    protocol_version: str
    server_info: ServerInfo
    bindings: list[Capability]
    """Capabilities, with addresses on its own machine; see `HudClient.binding`."""


class HudClient:
    """A connection to a served environment, and one session there. `connect` makes them."""

    PROTOCOL_VERSION = "hud/1.0"
    manifest: Manifest

    def __init__(self, connection: RemoteConnection) -> None:
        self._connection = connection
        self._tunnels: Tunnels | None = None
        self._here: dict[str, Capability] = {}
        self._opened: dict[str, CapabilityClient] = {}

    async def hello(self, session_id: str | None = None) -> Manifest:
        """Introduce ourselves again, or take over a session that was left with its task."""
        await _asked(self._connection.hello(session_id, client=None))
        return await self.met()

    async def met(self) -> Manifest:
        """Take over what the environment said, and make ways to what it offers."""
        there = self._connection
        await self._close_ways()
        self.manifest = Manifest(
            there.session_id,
            self.PROTOCOL_VERSION,
            ServerInfo(there.name, there.version),
            there.capabilities,
        )
        if there.endpoint is not None:
            self._tunnels = Tunnels(there.endpoint, there.session_id)
            for capability in there.capabilities:
                self._here[capability.name] = await self._tunnels.listen(capability)
        return self.manifest

    def binding(self, reference: str) -> Capability:
        """Return the capability of that name or protocol (`ssh`, `ssh/2`), with an address that works from here.

        Raises `NotFoundError` where none matches, `UsageError` where several do.
        """
        offered = self.manifest.bindings
        found = [capability for capability in offered if reference in _names(capability)]
        if len(found) > 1:
            names = ", ".join(capability.name for capability in found)
            raise UsageError(f"{reference!r} may be any of {names}; ask by name.")
        if not found:
            known = ", ".join(f"{one.name} ({one.protocol})" for one in offered) or "nothing"
            raise NotFoundError(f"The environment offers no {reference!r}; it offers {known}.")
        return self._here.get(found[0].name, found[0])

    async def open(self, reference: str) -> CapabilityClient:
        """Return a client of that capability, connected once, and closed with this one."""
        capability = self.binding(reference)
        if capability.name not in self._opened:
            self._opened[capability.name] = await connect_client(capability)
        return self._opened[capability.name]

    async def list_tasks(self) -> list[dict[str, Any]]:
        """Return a row for each task: `{id, description, args, ...}`."""
        return await _asked(self._connection.list_tasks())

    async def start_task(self, task_id: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Start a task in place of the session's; returns what it gave first: `{prompt, ...}`."""
        return await self._call("tasks.start", {"id": task_id, "args": args or {}})

    async def grade(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Have `payload["answer"]` graded; returns `{score, ...}`."""
        return await self._call("tasks.grade", payload)

    async def cancel(self) -> None:
        """Drop the session's task."""
        await self._call("tasks.cancel", {})

    async def close(self) -> None:
        """Hang up. A started task that was not graded stays there, for whoever asks by the session's id."""
        await self._close_ways()
        await self._connection.leave()

    async def _close_ways(self) -> None:
        for opened in self._opened.values():
            with suppress(OSError, HudError):  # What it was connected to may be gone.
                await opened.close()
        if self._tunnels is not None:
            await self._tunnels.close()
        self._opened, self._here, self._tunnels = {}, {}, None

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        said = await _asked(self._connection.call(method, params))
        if not isinstance(said, dict):
            raise HudProtocolError(_BAD_ANSWER, f"{method}: the result is not an object")
        return said


@asynccontextmanager
async def connect(
    runtime: Runtime | str, *, ready_timeout: float = READY_SECONDS
) -> AsyncIterator[HudClient]:
    """Connect to a served environment, as soon as it is up. Leaving hangs up; the environment stays."""
    place = Runtime(runtime) if isinstance(runtime, str) else runtime
    ready = float(place.params.get("ready_timeout", ready_timeout))
    connection = await _asked(
        RemoteConnection.dial(place.host, place.port, ready_timeout=ready, client=None)
    )
    client = HudClient(connection)
    try:
        await client.met()
        yield client
    finally:
        await client.close()


def _names(capability: Capability) -> tuple[str, ...]:
    return capability.name, capability.protocol, capability.protocol.split("/")[0]


async def _asked(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except RolloutError as fault:
        told = fault.__cause__
        if isinstance(told, ChannelError):
            raise HudProtocolError(told.code, str(told)) from fault
        raise
