"""The shop at an address of this machine, over the official package's own web application."""

import asyncio
import contextlib
import socket

import uvicorn
from tests.environment.mcp.servers.shop import build


class Address:
    """A server that can be stopped, and started again at the same address."""

    def __init__(self, *, key: str | None = None) -> None:
        self.key = key
        self.port = 0
        self.seen: list[dict[str, str]] = []
        """The headers of each request."""
        self._web: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        inner = build().streamable_http_app()

        async def application(scope, receive, send):
            if scope["type"] == "http":
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                self.seen.append(headers)
                if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
                    await send({"type": "http.response.start", "status": 401, "headers": []})
                    await send({"type": "http.response.body", "body": b"who are you?"})
                    return
            await inner(scope, receive, send)

        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        web = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="on"))
        web.capture_signals = contextlib.nullcontext
        self._web = web
        self._task = asyncio.create_task(web.serve(sockets=[listening]))
        while not web.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop as a killed process does: in the middle of whatever it was doing."""
        if self._web is None:
            return
        for connection in self._web.server_state.connections:
            connection.transport.abort()
        for task in self._web.server_state.tasks:
            task.cancel()
        self._web.should_exit = self._web.force_exit = True
        await asyncio.wait({self._task})
        self._web = None


@contextlib.asynccontextmanager
async def listening(**options):
    """Serve the shop at a free port."""
    address = Address(**options)
    await address.start()
    try:
        yield address
    finally:
        await address.stop()
