"""`hud view`: the dashboard over the embedded store."""

from __future__ import annotations

import click

from hud import settings
from hud.errors import UsageError


@click.command("view", epilog="For a team, with keys: hud up")
@click.option("--port", default=0, metavar="PORT", help="Port of 127.0.0.1; default: a free one.")
@click.option("--no-browser", is_flag=True, help="Print the address, without opening it.")
def command(port: int, no_browser: bool) -> None:
    """Open the dashboard of this machine's records; no server is needed."""
    from hud.platform.config import PlatformConfig
    from hud_dashboard.local.server import view

    now = settings.load()
    if not now.embedded:
        raise UsageError(
            f"HUD_API_URL points to {now.api_url}, which has a dashboard of its own: open it there, "
            "or unset HUD_API_URL to view what was recorded on this machine."
        )

    def announce(url: str) -> None:
        click.echo(f"The dashboard: {url}")
        click.echo("The address works once, for one browser. Stop: Ctrl-C")
        if not no_browser:
            click.launch(url)

    view(PlatformConfig(home=now.home, database=now.database_url), port, announce)
    click.echo("Stopped.")
