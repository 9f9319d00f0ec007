"""The agent's side of `filetracking/1`, for environments of other makers: what a step changed in the files."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from typing import Any, Self
from urllib.parse import urlsplit

from hud.capabilities import Capability
from hud.environment.channel.framing import ChannelError, FrameError, read_frame, request_frame
from hud.errors import InfrastructureFault

_LONGEST = 160 << 20
"""Bytes of an answer: the last one brings whole documents."""
_SECONDS = 30.0


class RemoteFiles:
    """One run's files, asked over a connection of its own."""

    def __init__(self, name: str, reader: StreamReader, writer: StreamWriter) -> None:
        self.name = name
        self._reader, self._writer = reader, writer
        self._asked = asyncio.Lock()
        self._last = 0

    @classmethod
    async def begin(cls, capability: Capability) -> Self:
        """Connect to an address that works from here, and take what is there now as nothing new."""
        place = urlsplit(capability.url)
        try:
            async with asyncio.timeout(_SECONDS):
                streams = await asyncio.open_connection(place.hostname, place.port, limit=_LONGEST)
        except (OSError, TimeoutError) as error:
            raise InfrastructureFault(
                f"{capability.name!r} does not answer at {capability.url}: {error}"
            ) from error
        self = cls(capability.name, *streams)
        try:
            await self._call("advance")
        except BaseException:
            await self.close()
            raise
        return self

    async def changed(self) -> dict[str, Any]:
        """Return what changed since this was last asked; {} where nothing did."""
        said = await self._call("diff")
        return said if said.get("files_changed") else {}

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _call(self, method: str) -> dict[str, Any]:
        async with self._asked:
            self._last += 1
            try:
                async with asyncio.timeout(_SECONDS):
                    self._writer.write(request_frame(self._last, method, {}))
                    await self._writer.drain()
                    answer = await read_frame(self._reader)
            except (OSError, TimeoutError, FrameError) as error:
                # Whatever is still on its way would be taken for the answer to the next question.
                self._writer.close()
                raise self._silent(method, str(error) or "no answer") from error
        if answer is None:
            raise self._silent(method, "it hung up")
        if answer.get("error") is not None:
            told = ChannelError.told(answer["error"])
            raise told.as_fault() from told
        result = answer.get("result")
        if answer.get("id") != self._last or not isinstance(result, dict):
            self._writer.close()
            raise self._silent(method, "its answer is none of filetracking/1")
        return result

    def _silent(self, method: str, problem: str) -> InfrastructureFault:
        return InfrastructureFault(f"{self.name!r} does not answer {method}: {problem}.")
