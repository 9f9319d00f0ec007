"""The client of `filetracking/1`, for third-party environments: file changes of a step."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from hud.capabilities import Capability
from hud.environment.channel.client.remote_connection import RemoteConnection
from hud.errors import InfrastructureFault

_LONGEST = 160 << 20
"""Largest response, in bytes: the last one contains whole documents."""
_SECONDS = 30.0


class RemoteFiles:
    """A run's files, over a separate connection."""

    def __init__(self, name: str, connection: RemoteConnection) -> None:
        self.name = name
        self._connection = connection

    @classmethod
    async def begin(cls, capability: Capability) -> Self:
        """Connect to a reachable address; the present files are the initial state.

        Raises `InfrastructureFault` without an answer.
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
        """Return the changes since the last call; {} without any."""
        changes = await self._call("diff")
        return changes if changes.get("files_changed") else {}

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
