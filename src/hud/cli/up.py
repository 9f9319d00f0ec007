"""`hud up`: the platform as a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hud import settings

if TYPE_CHECKING:
    from hud.platform.server import Address


@click.command("up")
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option("--port", default=8000, show_default=True, help="Port to listen on; 0 for any.")
@click.option("--database", metavar="URL", help="Database; default: SQLite under HUD_HOME.")
@click.option("--storage", metavar="URL", help="Folder for blobs; default: HUD_HOME/blobs.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Processes that play the rollouts which clients submit.",
)
def command(host: str, port: int, database: str | None, storage: str | None, workers: int) -> None:
    """Serve models, training, traces, tasksets and inference to a team."""
    from hud.platform.application import PlatformConfig
    from hud.platform.server import serve

    now = settings.load()
    config = PlatformConfig(
        home=now.home,
        database=database or now.database_url,
        storage=storage,
        keys=True,
        engine="worker",
        rollout_workers=workers,
    )
    serve(config, host, port, _announce)
    click.echo("Stopped.")


def _announce(address: Address, key: str | None) -> None:
    click.echo(f"OpenHUD is up at {address.url}  (API reference: {address.url}/docs)")
    if key is not None:
        click.echo("\nThis is the first key, an admin's. It is shown only now:")
        click.echo(f"  {key}")
    click.echo("\nA client needs:")
    for name, value in {**address.variables, "HUD_API_KEY": key or "YOUR_KEY"}.items():
        click.echo(f"  export {name}={value}")
    click.echo("\nMore keys: hud keys create NAME        Stop: Ctrl-C")
