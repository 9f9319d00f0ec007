"""Connections to providers: guarded, kept alive, never redirected, one pool for each event loop and reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

import aiohttp

from hud.outbound import CONNECT_SECONDS, Reach, guarded_session

SILENCE_SECONDS = 600.0
"""Longest pause of a provider that thinks."""
LONGEST_SECONDS = 3600.0
"""Of one answer, to its end."""


class Connections:
    """HTTP sessions of the gateway."""

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[
            asyncio.AbstractEventLoop,
            dict[Reach, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]]],
        ] = WeakKeyDictionary()

    async def session(self, reach: Reach) -> aiohttp.ClientSession:
        """Return the running loop's session for a reach: a connection that one opened is no other's to use."""
        sessions = self._sessions.setdefault(asyncio.get_running_loop(), {})
        found = sessions.get(reach)
        if found is None or found[0].closed:
            # A loop closes its asynchronous generators before it ends, and this one its session.
            opened = _opened(reach)
            found = sessions[reach] = (await anext(opened), opened)
        return found[0]


async def _opened(reach: Reach) -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with guarded_session(
        reach,
        timeout=aiohttp.ClientTimeout(
            total=LONGEST_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        ),
        # What a provider sends is passed on as it is, and it keeps no state with us.
        auto_decompress=False,
        skip_auto_headers={"User-Agent", "Accept", "Accept-Encoding"},
    ) as session:
        yield session
