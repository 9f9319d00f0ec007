"""`hud serve`: an environment on a TCP port, for remote agents."""

from __future__ import annotations

import asyncio

import click

from hud.cli.option_checks import PORT
from hud.cli.output import count


@click.command(
    name="serve", epilog="Play against it: hud eval TASKS AGENT --runtime tcp://HOST:PORT"
)
@click.argument("environment", default=".")
@click.option("-p", "--port", type=PORT, default=8765, show_default=True)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="0.0.0.0 lets other machines in."
)
def command(environment: str, port: int, host: str) -> None:
    """Serve ENVIRONMENT (path.py, path.py:attribute, a folder, or module:attribute) over TCP.

    Prints HUD_SERVE_PORT=<port> once it listens; port 0 takes a free one.
    """
    from hud.environment import load_environment
    from hud.environment.channel import ControlServer
    from hud.processes.listening import listen

    loaded = load_environment(environment)
    listening = listen(host, port)
    click.echo(
        f"Serving {loaded.name} {loaded.version} ({count(len(loaded.templates), 'template')}, "
        f"{count(len(loaded.tools), 'tool')}) on {host}. Ctrl-C stops.",
        err=True,
    )
    asyncio.run(ControlServer(loaded).serve(listening))
