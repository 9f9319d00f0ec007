"""`hud dev`: an environment as an MCP server that reloads its source, for coding agents and interactive tests."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from hud.cli.option_checks import PORT

if TYPE_CHECKING:
    from hud.eval.development.live_environment import LiveEnvironment

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")
"""Characters that coding agents reject in a server's name."""


@click.command(name="dev", epilog="Try it by hand: npx @modelcontextprotocol/inspector")
@click.argument("environment", default=".")
@click.option(
    "-w",
    "--watch",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Also watch this file or folder; Python files in the environment's folder are always watched.",
)
@click.option("-p", "--port", type=PORT, default=8765, show_default=True)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="0.0.0.0 lets other machines in."
)
@click.option(
    "--stdio", is_flag=True, help="Serve on standard input and output, for a client that starts it."
)
def command(environment: str, watch: tuple[Path, ...], port: int, host: str, stdio: bool) -> None:
    """Serve ENVIRONMENT (path.py, path.py:attribute, a folder, or module:attribute) over MCP while you write it.

    It is reloaded at every change; if a version cannot be loaded, the error is shown and the last working version
    continues. Every client session has its own run and state.
    """
    from hud.eval.development.server import serve_stdio, serve_web

    if stdio:
        asyncio.run(serve_stdio(environment, watch, _say))
        return

    def announce(live: LiveEnvironment, bound: int) -> None:
        reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        url = f"http://{f'[{reached}]' if ':' in reached else reached}:{bound}"
        _announce(environment, live, url)

    asyncio.run(serve_web(environment, watch, _say, host=host, port=port, announce=announce))


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


def _announce(environment: str, live: LiveEnvironment, url: str) -> None:
    """Print the address, and the commands that connect coding agents."""
    name = _NO_NAME.sub("-", live.version.name).strip("-") or "environment"
    entry = {"url": f"{url}/mcp"}
    encoded = base64.b64encode(json.dumps(entry).encode()).decode()
    program = shlex.join(["hud", "dev", environment, "--stdio"])
    _say(f"Serving {live.version.name} {live.version.version} at {url}/mcp")
    _say(f"Watching {', '.join(str(path) for path in dict.fromkeys(live.watched))}. Ctrl-C stops.")
    _say(
        "Try it by hand:  npx @modelcontextprotocol/inspector  (Streamable HTTP, and this address)"
    )
    _say("")
    _say(f"Claude Code:  claude mcp add --transport http {name} {url}/mcp")
    _say(f"   or, started by it:  claude mcp add {name} -- {program}")
    _say(f"Cursor, in .cursor/mcp.json:  {json.dumps({'mcpServers': {name: entry}})}")
    _say(
        "   or open:  cursor://anysphere.cursor-deeplink/mcp/install"
        f"?name={name}&config={quote(encoded)}"
    )
    _say("")
