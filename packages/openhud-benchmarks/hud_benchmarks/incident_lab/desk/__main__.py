"""Serve one of the lab's MCP servers over stdio: `python -m hud_benchmarks.incident_lab.desk tracker leak-orders`."""

import sys
from pathlib import Path

import anyio
from mcp.server.stdio import stdio_server

from hud_benchmarks.incident_lab.desk.servers import TOOLS, server
from hud_benchmarks.incident_lab.incidents import incidents
from hud_benchmarks.incident_lab.lab.recording import opened


async def serve(name: str, recording: Path) -> None:
    """Serve until the other side hangs up."""
    desk = server(name, recording)
    async with stdio_server() as (reading, writing):
        await desk.run(reading, writing, desk.create_initialization_options())


def main(arguments: list[str]) -> None:
    """Read the command line, a server and an incident's name or file, and serve."""
    if len(arguments) != 2 or arguments[0] not in TOOLS:
        sys.exit(
            f"usage: python -m hud_benchmarks.incident_lab.desk {'|'.join(TOOLS)} INCIDENT|FILE"
        )
    name, incident = arguments
    recorded = incidents().get(incident)
    file = Path(incident) if recorded is None else recorded.file
    try:
        opened(file).close()
    except ValueError as error:
        sys.exit(f"Error: {error}")
    anyio.run(serve, name, file)


if __name__ == "__main__":
    main(sys.argv[1:])
