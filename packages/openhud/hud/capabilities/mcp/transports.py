"""Transports to a server at an address: streamable HTTP, server-sent events, WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal

import anyio
import httpx2
from mcp import types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from hud.errors import EnvironmentFault

Transport = Literal["streamable-http", "sse", "websocket"]

_CONNECT_SECONDS = 15.0
_SILENCE_SECONDS = 3600.0
"""Read time-out, in seconds: a response may be idle that long; each call has its own time-out."""
_LARGEST = 64 * 1024 * 1024
"""Largest message, in bytes: screenshots are base64 in a single event."""


def dial_url(
    url: str, headers: dict[str, str] | None = None, transport: Transport | None = None
) -> AbstractAsyncContextManager[Any]:
    """Return the transport to `url`; without `transport`, it is inferred from the address."""
    match transport or likely(url):
        case "sse":
            return _sse(url, headers or {})
        case "websocket":
            return _websocket(url, headers or {})
        case _:
            return _streamable(url, headers or {})


def likely(url: str) -> Transport:
    """Return the usual transport of servers at such an address."""
    if url.startswith(("ws://", "wss://")):
        return "websocket"
    return "sse" if httpx2.URL(url).path.rstrip("/").endswith("/sse") else "streamable-http"


@asynccontextmanager
async def _streamable(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    async with (
        _http_client(headers) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=_LARGEST) as streams,
    ):
        yield streams


@asynccontextmanager
async def _sse(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    def made(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        del timeout, auth
        return _http_client(headers or {})

    async with sse_client(url, headers=dict(headers), httpx_client_factory=made) as streams:
        yield streams


def _http_client(headers: dict[str, str]) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(_CONNECT_SECONDS, read=_SILENCE_SECONDS),
        event_hooks={"response": [_refuse_strangers, _end_unknown_sessions]},
    )


async def _refuse_strangers(response: httpx2.Response) -> None:
    """Raise for rejected credentials; the official client reports only an "error response"."""
    if response.status_code in (401, 403):
        raise EnvironmentFault(
            f"{response.url} answered {response.status_code} {response.reason_phrase}; see its headers"
        )


async def _end_unknown_sessions(response: httpx2.Response) -> None:
    """Treat a 404 for a session as its end, as the protocol requires, whatever its body is.

    The official client would report the body as a refusal of the request.
    """
    if response.status_code == 404 and "mcp-session-id" in response.request.headers:
        response.headers["content-type"] = "text/plain"


@asynccontextmanager
async def _websocket(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    import websockets

    inward, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outward = anyio.create_memory_object_stream[SessionMessage](0)
    async with (
        websockets.connect(
            url,
            subprotocols=[websockets.Subprotocol("mcp")],
            additional_headers=headers,
            max_size=_LARGEST,
            open_timeout=_CONNECT_SECONDS,
        ) as socket,
        anyio.create_task_group() as group,
    ):

        async def receive() -> None:
            async with inward:
                async for text in socket:
                    try:
                        message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
                    except ValueError as error:
                        await inward.send(error)
                        continue
                    await inward.send(SessionMessage(message))

        async def send() -> None:
            async with outward:
                async for session_message in outward:
                    await socket.send(
                        session_message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    )

        group.start_soon(receive)
        group.start_soon(send)
        async with read, write:
            yield read, write
        group.cancel_scope.cancel()
