"""Serve one of the desk's MCP servers over stdio: `python -m desk tracker .lab/leak-orders.sqlite.gz`."""

import sys
from pathlib import Path

import anyio
from mcp.server.stdio import stdio_server

from desk.servers import TOOLS, server


async def serve(name: str, recording: Path) -> None:
    """Serve until the other side hangs up."""
    made = server(name, recording)
    async with stdio_server() as (reading, writing):
        await made.run(reading, writing, made.create_initialization_options())


if len(sys.argv) != 3 or sys.argv[1] not in TOOLS:
    sys.exit(f"usage: python -m desk {'|'.join(TOOLS)} RECORDING")
anyio.run(serve, sys.argv[1], Path(sys.argv[2]))
