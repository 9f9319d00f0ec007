"""Server of an environment under development over MCP, for `hud dev`.

It combines the live environment (`live`) and the MCP server. Clients stay connected across reloads.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hud.errors import UsageError
from hud.eval.development.live_environment import LiveEnvironment
from hud.processes.listening import listen

if TYPE_CHECKING:
    from hud.environment.mcp.environment_server import EnvironmentServer

Tell = Callable[[str], None]
"""Function that shows messages to the developer."""
Announce = Callable[[LiveEnvironment, int], None]
"""Callback with the port, once the server is ready."""


async def serve_stdio(source: str, watch: Sequence[Path], tell: Tell) -> None:
    """Serve a client on standard input and output until it disconnects. The environment's output goes to stderr."""
    async with _served(source, watch, tell) as (live, server):
        tell(f"Serving {live.version.name} over standard input and output.")
        await server.serve_stdio()


async def serve_web(
    source: str, watch: Sequence[Path], tell: Tell, *, host: str, port: int, announce: Announce
) -> None:
    """Serve over streamable HTTP at `/mcp` until interrupted."""
    listening = listen(host, port)
    try:
        async with _served(source, watch, tell) as (live, server):
            import uvicorn

            config = uvicorn.Config(
                server.application(host),
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=1,
            )
            web = uvicorn.Server(config)
            serving = asyncio.create_task(web.serve(sockets=[listening]))
            while not (web.started or serving.done()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            announce(live, listening.getsockname()[1])
            await serving
    finally:
        listening.close()


@asynccontextmanager
async def _served(
    source: str, watch: Sequence[Path], tell: Tell
) -> AsyncIterator[tuple[LiveEnvironment, EnvironmentServer]]:
    try:
        from hud.environment.mcp.environment_server import EnvironmentServer
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Serving over MCP needs the package {error.name!r}: pip install 'openhud[environments]'."
        ) from None
    async with LiveEnvironment(source, watch=watch, tell=tell, on_output=_print).running() as live:
        server = EnvironmentServer(live.open, name=live.version.name, version=live.version.version)
        live.when_replaced(server.renew)
        try:
            yield live, server
        finally:
            await server.close()


def _print(printed: bytes) -> None:
    """Forward the environment's output; standard output may belong to a client."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.buffer.write(printed)
        sys.stderr.buffer.flush()
