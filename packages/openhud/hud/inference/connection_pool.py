"""`Lanes`: an HTTP transport for a thousand concurrent requests.

httpx's pool searches all its connections for each request: O(connections). Here each connection is a lane, and a request
takes the most recently freed one: O(1).
"""

from __future__ import annotations

import ssl
from functools import lru_cache

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """Keep-alive connections, as many as the peak of concurrent requests.

    Responses are read whole before their lane is freed, so streaming is not possible.
    """

    def __init__(self) -> None:
        self._tls = _tls_context(ssl.get_default_verify_paths())
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
            # Cancelled or failed: the connection's state is unknown.
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


@lru_cache(maxsize=4)
def _tls_context(certificates: ssl.DefaultVerifyPaths) -> ssl.SSLContext:
    """Return the TLS context of all connections; another one where SSL_CERT_FILE or SSL_CERT_DIR have changed.

    Reading the certificates takes tens of milliseconds, and each rollout of a worker makes a model of its own.
    """
    del certificates  # httpx reads the same variables.
    return httpx.create_ssl_context()
