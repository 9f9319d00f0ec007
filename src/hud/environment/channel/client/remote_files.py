"""The agent's side of `filetracking/1`, for environments of other makers: what a step changed in the files."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from hud.capabilities import Capability
from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.errors import InfrastructureFault

_LONGEST = 160 << 20
"""Bytes of an answer: the last one brings whole documents."""
_SECONDS = 30.0


class RemoteFiles:
    """One run's files, asked over a connection of its own."""

    def __init__(self, name: str, connection: RemoteConnection) -> None:
        self.name = name
        self._connection = connection

    @classmethod
    async def begin(cls, capability: Capability) -> Self:
        """Connect to an address that works from here, and take what is there now as nothing new.

        Raises `InfrastructureFault` where nothing answers there.
        """
        try:
            async with asyncio.timeout(_SECONDS):
                streams = await asyncio.open_connection(*capability.address, limit=_LONGEST)
        except (OSError, TimeoutError) as error:
            raise InfrastructureFault(
                f"{capability.name!r} does not answer at {capability.url}: {error}"
            ) from error
        self = cls(capability.name, RemoteConnection(*streams, address=capability.url))
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
        await self._connection.leave()

    async def _call(self, method: str) -> dict[str, Any]:
        problem = "its answer is none of filetracking/1"
        try:
            async with asyncio.timeout(_SECONDS):
                result = await self._connection.call(method, {})
                if isinstance(result, dict):
                    return result
        except TimeoutError:
            problem = "no answer"
        raise InfrastructureFault(f"{self.name!r} does not answer {method}: {problem}.")
