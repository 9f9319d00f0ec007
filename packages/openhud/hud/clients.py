"""`hud.connect`: a low-level client of a served environment and its capabilities.

    async with hud.connect(Runtime("tcp://127.0.0.1:8765")) as client:
        prompt = await client.start_task("count", {"word": "tree"})
        shell = await client.open("ssh")
        print(await client.grade({"answer": "4"}))

Rollouts (`hud.eval`) do the same and add recording, time limits and retries.
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
    """Error response of the environment; `code` is that of JSON-RPC or of the control channel."""

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
    """A connection to a served environment with one session, made by `connect`."""

    PROTOCOL_VERSION = "hud/1.0"
    manifest: Manifest

    def __init__(self, connection: RemoteConnection) -> None:
        self._connection = connection
        self._tunnels: Tunnels | None = None
        self._here: dict[str, Capability] = {}
        self._opened: dict[str, CapabilityClient] = {}

    async def hello(self, session_id: str | None = None) -> Manifest:
        """Send `hello` again, or take over a disconnected session with its task."""
        await _asked(self._connection.hello(session_id, client=None))
        return await self.met()

    async def met(self) -> Manifest:
        """Store the response to `hello`, and open the routes to the capabilities."""
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
        """Return the capability of that name or protocol (`ssh`, `ssh/2`), with an address reachable from this machine.

        Raises `NotFoundError` if none matches, `UsageError` if several do.
        """
        offered = self.manifest.bindings
        matching = [capability for capability in offered if reference in _names(capability)]
        if len(matching) > 1:
            names = ", ".join(capability.name for capability in matching)
            raise UsageError(f"{reference!r} may be any of {names}; ask by name.")
        if not matching:
            names_offered = (
                ", ".join(f"{capability.name} ({capability.protocol})" for capability in offered)
                or "nothing"
            )
            raise NotFoundError(
                f"The environment offers no {reference!r}; it offers {names_offered}."
            )
        return self._here.get(matching[0].name, matching[0])

    async def open(self, reference: str) -> CapabilityClient:
        """Return a client of that capability; it is connected once, and closed with this client."""
        capability = self.binding(reference)
        if capability.name not in self._opened:
            self._opened[capability.name] = await connect_client(capability)
        return self._opened[capability.name]

    async def list_tasks(self) -> list[dict[str, Any]]:
        """Return a row for each task: `{id, description, args, ...}`."""
        return await _asked(self._connection.list_tasks())

    async def start_task(self, task_id: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Start a task, replacing the session's; returns its setup result: `{prompt, ...}`."""
        return await self._call("tasks.start", {"id": task_id, "args": args or {}})

    async def grade(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Grade `payload["answer"]`; returns `{score, ...}`."""
        return await self._call("tasks.grade", payload)

    async def cancel(self) -> None:
        """Cancel the session's task."""
        await self._call("tasks.cancel", {})

    async def close(self) -> None:
        """Disconnect. A started, ungraded task remains on the server; `hello` with the session's id resumes it."""
        await self._close_ways()
        await self._connection.leave()

    async def _close_ways(self) -> None:
        for opened in self._opened.values():
            with suppress(OSError, HudError):  # The environment may be gone.
                await opened.close()
        if self._tunnels is not None:
            await self._tunnels.close()
        self._opened, self._here, self._tunnels = {}, {}, None

    async def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        result = await _asked(self._connection.call(method, params))
        if not isinstance(result, dict):
            raise HudProtocolError(_BAD_ANSWER, f"{method}: the result is not an object")
        return result


@asynccontextmanager
async def connect(
    runtime: Runtime | str, *, ready_timeout: float = READY_SECONDS
) -> AsyncIterator[HudClient]:
    """Connect to a served environment as soon as it is up, and disconnect at the end; it keeps running."""
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
        cause = fault.__cause__
        if isinstance(cause, ChannelError):
            raise HudProtocolError(cause.code, str(cause)) from fault
        raise
