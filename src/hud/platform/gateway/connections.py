"""Connections to providers: kept alive, never redirected, one pool for each event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakKeyDictionary

import aiohttp

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 600.0
"""Longest pause of a provider that thinks."""


class Connections:
    """HTTP sessions of the gateway."""

    def __init__(self) -> None:
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            WeakKeyDictionary()
        )

    def session(self) -> aiohttp.ClientSession:
        """Return the running loop's session."""
        loop = asyncio.get_running_loop()
        found = self._sessions.get(loop)
        if found is None or found.closed:
            found = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
                ),
                # What a provider sends is passed on as it is, and it keeps no state with us.
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers={"User-Agent", "Accept", "Accept-Encoding"},
            )
        return found

    async def close(self) -> None:
        """Close every session."""
        for loop, session in list(self._sessions.items()):
            with suppress(RuntimeError):
                if loop is asyncio.get_running_loop():
                    await session.close()
                elif not loop.is_closed():
                    asyncio.run_coroutine_threadsafe(session.close(), loop)
        self._sessions.clear()
