"""`Lanes`: an HTTP transport that stays fast at a thousand concurrent requests.

A pool of many connections looks through all of them for each request, so its cost grows with its width.
Here every connection is a lane of its own; a request takes the last lane that became free.
"""

from __future__ import annotations

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """Keep-alive connections, as many as requests were ever in flight together.

    Answers are read whole before their lane is free, so nothing can be streamed through it.
    """

    def __init__(self) -> None:
        # One TLS context for all: building it is the slow part of a connection.
        self._tls = httpx.create_ssl_context()
        self._free: list[httpx.AsyncHTTPTransport] = []
        self.width = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._free.pop() if self._free else self._new_lane()
        try:
            response = await lane.handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            body = b"".join([chunk async for chunk in response.stream])
            await response.aclose()
        except BaseException:
            # Cancelled or broken: what the connection would say next is not known.
            self.width -= 1
            await lane.aclose()
            raise
        self._free.append(lane)
        return httpx.Response(
            response.status_code, headers=response.headers, stream=httpx.ByteStream(body)
        )

    async def aclose(self) -> None:
        lanes, self._free = self._free, []
        self.width -= len(lanes)
        for lane in lanes:
            await lane.aclose()

    def _new_lane(self) -> httpx.AsyncHTTPTransport:
        self.width += 1
        return httpx.AsyncHTTPTransport(
            verify=self._tls,
            limits=httpx.Limits(
                max_connections=1, max_keepalive_connections=1, keepalive_expiry=60
            ),
        )
