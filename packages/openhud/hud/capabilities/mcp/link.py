"""A connection to an MCP server for the duration of a run, with reconnection.

A lost connection to an address is opened again. A request that the server did not receive is repeated; one that may have
been executed is not. If reconnection fails, `broken` holds the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2
from mcp import MCPError, types

from hud.capabilities.mcp.results import resource_block, result_of
from hud.capabilities.mcp.session import Dial, ServerLost, Session, reason
from hud.errors import EnvironmentFault, InfrastructureFault
from hud.processes.backoff import Backoff
from hud.trace import ContentBlock, ToolResult

CALL_SECONDS = 300.0
START_SECONDS = 60.0
"""Time-out for connecting, in seconds: `npx` and `uvx` may download packages first."""
RECONNECTS = 3
_PAUSES = Backoff(0.1, longest_seconds=2.0)
_Said = TypeVar("_Said")


@dataclass(frozen=True)
class Answered:
    """A tool's result, and its blocks that cannot be shown to agents, in the server's format."""

    result: ToolResult
    unshown: list[dict[str, Any]] = field(default_factory=list)


class Link:
    """A connection to the server called `name`; `where` is its address or command, for messages."""

    def __init__(
        self,
        name: str,
        where: str,
        dial: Dial,
        *,
        start_seconds: float = START_SECONDS,
        reconnects: int = RECONNECTS,
        why_ended: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        self.name = name
        self.where = where
        self.broken: str | None = None
        """Reason, in a sentence, why the server is permanently unreachable; None while it is usable."""
        self._dial = dial
        self._start_seconds = start_seconds
        self._reconnects = reconnects
        self._why_ended = why_ended
        self._session = Session(dial)
        self._mending = asyncio.Lock()

    @property
    def tools(self) -> dict[str, types.Tool]:
        """The server's tools by name, by its latest list."""
        return self._session.tools

    async def open(self) -> None:
        """Connect. Raises `EnvironmentFault`, or `InfrastructureFault` if the connection to an address failed."""
        try:
            await self._session.open(self._start_seconds)
        except Exception as error:
            problem = await self._told(error, self._start_seconds)
            broke = isinstance(error, httpx2.TransportError)
            kind = InfrastructureFault if broke else EnvironmentFault
            raise kind(
                f"The MCP server {self.name!r} ({self.where}) cannot be used: {problem}."
            ) from error

    async def close(self) -> None:
        await self._session.close()

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> Answered:
        """Call a tool; failures are error results."""
        try:
            result = await self._asked(lambda session: session.call(name, arguments, seconds))
            return Answered(*result_of(result))
        except ServerLost as lost:
            problem = self.broken or (
                f"The connection to the MCP server {self.name!r} broke during the call ({lost}); "
                "it may have been carried out, or not."
            )
        except TimeoutError:
            return Answered(ToolResult.of_time_out(name, seconds))
        except MCPError as error:
            problem = f"{name}: {error.message}"
        except Exception as error:  # Invalid result.
            problem = f"{name}: {type(error).__name__}: {error}"
        return Answered(ToolResult.of_text(problem, is_error=True))

    async def read(self, uri: str) -> list[ContentBlock]:
        """Return the contents of a resource. Raises `EnvironmentFault`."""
        try:
            resource = await self._asked(lambda session: session.read(uri))
        except (ServerLost, MCPError) as error:
            raise EnvironmentFault(
                f"The MCP server {self.name!r} did not give the resource {uri}: {error}."
            ) from None
        return [resource_block(contents) for contents in resource.contents]

    async def _asked(self, ask: Callable[[Session], Awaitable[_Said]]) -> _Said:
        for attempt in range(self._reconnects + 1):
            session = self._session
            try:
                return await ask(session)
            except ServerLost as lost:
                await self._mend(session, lost)
                again = lost.unsent and self.broken is None and attempt < self._reconnects
                if not again:
                    raise
        raise AssertionError("a loop that returns or raises")

    async def _mend(self, lost_session: Session, lost: ServerLost) -> None:
        """Reconnect, once for all calls that failed with `lost_session`; on failure set `broken`."""
        async with self._mending:
            if self._session is not lost_session or self.broken is not None:
                return
            problem = await self._told(lost, 0)
            await lost_session.close()
            for attempt in range(1, self._reconnects + 1):
                await asyncio.sleep(_PAUSES.seconds(attempt))
                session = Session(self._dial)
                try:
                    await session.open(self._start_seconds)
                except Exception as error:
                    problem = await self._told(error, self._start_seconds)
                    continue
                self._session = session
                return
            self.broken = f"The MCP server {self.name!r} ({self.where}) was lost: {problem}."

    async def _told(self, error: Exception, seconds: float) -> str:
        """Return a description of the failure, preferably from the server's exit."""
        ended = None if self._why_ended is None else await self._why_ended()
        if ended is not None:
            return ended
        if isinstance(error, TimeoutError):
            return f"no answer within {seconds:g} s"
        if isinstance(error, ServerLost):
            return str(error)
        return reason(error).rstrip(".")
