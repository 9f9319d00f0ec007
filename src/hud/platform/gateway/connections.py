"""Connections to providers: kept alive, never redirected, one pool for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from weakref import WeakKeyDictionary

import aiohttp

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0
"""Longest pause of a provider that thinks."""


class Connections:
    """HTTP sessions of the gateway."""

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[
            asyncio.AbstractEventLoop,
            tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]],
        ] = WeakKeyDictionary()

    async def session(self) -> aiohttp.ClientSession:
        """Return the running loop's session."""
        loop = asyncio.get_running_loop()
        found = self._sessions.get(loop)
        if found is None or found[0].closed:
            # A loop closes its asynchronous generators before it ends, and this one its session.
            opened = _opened()
            found = self._sessions[loop] = (await anext(opened), opened)
        return found[0]


async def _opened() -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        ),
        # What a provider sends is passed on as it is, and it keeps no state with us.
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers={"User-Agent", "Accept", "Accept-Encoding"},
    ) as session:
        yield session
