"""Tunnels, client side: a local port for each capability of a remote environment.

Each connection to the port opens a connection to the environment's control channel, which sends `tunnel.open` and then
carries the capability's bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit, urlunsplit

from hud.capabilities import Capability
from hud.environment.channel.framing import (
    MAX_FRAME_BYTES,
    ChannelError,
    FrameError,
    read_frame,
    request_frame,
    watch,
)
from hud.environment.streams import Stream, relay
from hud.errors import InfrastructureFault, RolloutError

_OPEN_SECONDS = 30.0
_PUBLIC = ("https", "wss")
"""Schemes with certificates for the host name: connected to directly, without a tunnel."""


class Tunnels:
    """Tunnels to the capabilities of one session of the environment at `endpoint` (host and port)."""

    def __init__(self, endpoint: tuple[str, int], session_id: str) -> None:
        self.endpoint = endpoint
        self.session_id = session_id
        self._listening: dict[str, asyncio.Server] = {}
        self._ready: dict[str, Stream] = {}
        """Tunnels opened as a check; each is used by the first connection."""
        self._carrying: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    async def reach(self, capability: Capability) -> Capability:
        """Return `capability` with a local port as its address. Raises if the environment refuses the tunnel."""
        name = capability.name
        if urlsplit(capability.url).scheme not in _PUBLIC:
            async with self._opening:
                if name not in self._listening:
                    self._ready[name] = await self._open(name)
        return await self.listen(capability)

    async def listen(self, capability: Capability) -> Capability:
        """Do the same without the check: the first connection fails if the environment refuses."""
        name, place = capability.name, urlsplit(capability.url)
        if place.scheme in _PUBLIC:
            return capability
        async with self._opening:
            if name not in self._listening:
                self._listening[name] = await asyncio.start_server(
                    partial(self._serve, name), "127.0.0.1", 0
                )
        port = self._listening[name].sockets[0].getsockname()[1]
        user = f"{place.username}@" if place.username else ""
        return replace(capability, url=urlunsplit(place._replace(netloc=f"{user}127.0.0.1:{port}")))

    async def close(self) -> None:
        for server in self._listening.values():
            server.close()
        for _, writer in self._ready.values():
            writer.close()
        self._ready.clear()
        for task in self._carrying:
            task.cancel()
        if self._carrying:
            await asyncio.wait(list(self._carrying))

    async def _serve(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            there = self._ready.pop(name, None)
            if there is None or there[0].at_eof():
                there = await self._open(name)
            await relay((reader, writer), there)
        except (RolloutError, asyncio.CancelledError):
            pass  # The capability's client sees a closed connection: its protocol has no room for an error.
        finally:
            writer.close()
            self._carrying.discard(task)

    async def _open(self, name: str) -> Stream:
        host, port = self.endpoint
        writer = None
        try:
            async with asyncio.timeout(_OPEN_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, limit=MAX_FRAME_BYTES)
                watch(writer)
                params = {"capability": name, "session_id": self.session_id}
                writer.write(request_frame(1, "tunnel.open", params))
                answer = await read_frame(reader)
            if answer is None:
                raise ConnectionError("it hung up")
        except (OSError, TimeoutError, FrameError) as error:
            await _drop(writer)
            raise InfrastructureFault(
                f"The environment at tcp://{host}:{port} opens no tunnel to {name!r}: {error or 'no answer'}."
            ) from error
        if answer.get("error") is None:
            return reader, writer
        await _drop(writer)
        refusal = ChannelError.from_response(answer["error"])
        raise refusal.as_fault() from refusal


async def _drop(writer: StreamWriter | None) -> None:
    if writer is not None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
