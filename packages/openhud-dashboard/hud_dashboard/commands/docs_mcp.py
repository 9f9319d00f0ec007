"""`hud docs-mcp`: the product's own documentation as an MCP server, for coding agents."""

from __future__ import annotations

import asyncio

import click

from hud.errors import UsageError


@click.command(
    name="docs-mcp", epilog="Point Claude Code at it: claude mcp add openhud-docs -- hud docs-mcp"
)
def command() -> None:
    """Serve this documentation over MCP, on standard input and output.

    Coding agents start it themselves and get two tools, search and read. A server (`hud up`) has the same at /docs/mcp.
    """
    try:
        from hud_dashboard.documentation.served import DocumentationServer
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Serving over MCP needs the package {error.name!r}: pip install 'openhud[environments]'."
        ) from None
    from hud_dashboard.documentation import Library, read_pages

    asyncio.run(DocumentationServer(Library(read_pages())).serve_stdio())
