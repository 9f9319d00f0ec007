"""A session of an OpenEnv server: its websocket, with one message and one response at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hud.environment import OpenPart
from hud.errors import EnvironmentFault, InfrastructureFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from websockets.asyncio.client import ClientConnection

    from hud.environment.part import RunTool

SECONDS = 120.0
"""Time-out of one message, in seconds."""
MESSAGE_BYTES = 64 << 20


class ServerRefusedError(Exception):
    """The server answered a message with an error."""


@dataclass
class Observed:
    """Rewards and end of a session's episode."""

    rewards: list[float] = field(default_factory=list)
    done: bool = False
    steps: int = 0


class Session(OpenPart):
    """One open session."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._lock = asyncio.Lock()
        self._calls = 0
        self.episode = Observed()
        self.offered: dict[str, RunTool] = {}

    def tools(self) -> Mapping[str, RunTool]:
        return self.offered

    async def reset(self, **arguments: Any) -> dict[str, Any]:
        """Begin an episode; returns its first observation. Raises `EnvironmentFault` where the server refuses it."""
        self.episode = Observed()
        try:
            return self._observed(await self._ask("reset", arguments))
        except ServerRefusedError as error:
            raise EnvironmentFault(f"The OpenEnv server refused a reset: {error}") from error

    async def step(self, action: dict[str, Any]) -> dict[str, Any]:
        """Take one action; returns the observation. Raises `ServerRefusedError`."""
        observation = self._observed(await self._ask("step", action))
        self.episode.steps += 1
        return observation

    async def mcp_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the server has over MCP; empty for a server without."""
        self._calls += 1
        request = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": self._calls}
        try:
            response = await self._ask("mcp", request)
        except ServerRefusedError:
            return []
        result = response.get("result") or {}
        tools: list[dict[str, Any]] = result.get("tools") or []
        return tools

    def _observed(self, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("reward") is not None:
            self.episode.rewards.append(float(data["reward"]))
        self.episode.done = bool(data.get("done"))
        observation: dict[str, Any] = data.get("observation") or {}
        return observation

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the response's data. Raises `InfrastructureFault` where the server is lost."""
        from websockets.exceptions import ConnectionClosed

        try:
            async with self._lock, asyncio.timeout(SECONDS):
                await self._socket.send(json.dumps({"type": kind, "data": data}))
                response = json.loads(await self._socket.recv())
        except (ConnectionClosed, OSError, RecursionError, ValueError) as error:
            raise InfrastructureFault(f"The OpenEnv server was lost: {error}") from error
        reply: dict[str, Any] = response.get("data") or {}
        if response.get("type") == "error":
            raise ServerRefusedError(_refusal(reply))
        return reply


def _refusal(data: dict[str, Any]) -> str:
    """Return the server's message with the errors of single fields, which it keeps apart."""
    message = str(data.get("message") or data)
    errors = data.get("errors")
    fields = [_field_error(error) for error in errors] if isinstance(errors, list) else []
    return "\n".join([f"{message}:", *fields]) if fields else message


def _field_error(error: Any) -> str:
    """Return an error of pydantic's as `field: reason`."""
    if not isinstance(error, dict) or not error.get("msg"):
        return str(error)
    places = error.get("loc") or ()
    place = ".".join(map(str, places)) if isinstance(places, list | tuple) else str(places)
    return f"{place or 'action'}: {error['msg']}"


@asynccontextmanager
async def open_session(url: str) -> AsyncIterator[Session]:
    """Open a session of the server at `http://HOST:PORT`. Raises `InfrastructureFault` if it cannot be reached."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    address = f"ws{url.removeprefix('http').rstrip('/')}/ws"
    try:
        # Keep-alive pings would end a session whose step takes long: its server may block meanwhile.
        socket = await connect(address, max_size=MESSAGE_BYTES, ping_interval=None)
    except (OSError, WebSocketException, TimeoutError) as error:
        raise InfrastructureFault(f"No OpenEnv server answers at {url}: {error}") from error
    try:
        yield Session(socket)
    finally:
        await socket.close()
