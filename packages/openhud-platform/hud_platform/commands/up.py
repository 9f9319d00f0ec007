"""`hud up`: the platform as a service."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import TYPE_CHECKING

import click

from hud import settings
from hud.cli.option_checks import PORT
from hud.errors import UsageError

if TYPE_CHECKING:
    from hud_platform.process.config import BuildLimits
    from hud_platform.server import Address


@click.command("up")
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option(
    "--port", type=PORT, default=8000, show_default=True, help="Port to listen on; 0 for any."
)
@click.option("--database", metavar="URL", help="Database; default: SQLite under HUD_HOME.")
@click.option("--storage", metavar="URL", help="Folder for blobs; default: HUD_HOME/blobs.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Worker processes for submitted rollouts.",
)
@click.option(
    "--engines",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Maximum engine processes, for sampling and training; up to one per model.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=16),
    default=4096,
    show_default=True,
    help="Maximum connections; beyond it, the connection with the longest idle time is closed.",
)
@click.option(
    "--rollout-lease",
    type=click.FloatRange(min=6),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="Time after which a rollout whose worker is not heard of goes to another; at least 6.",
)
@click.option(
    "--build-limit",
    "build_limits",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Limit of an environment's build: seconds, files, bytes (unpacked), archive_bytes.",
)
def command(
    host: str,
    port: int,
    database: str | None,
    storage: str | None,
    workers: int,
    engines: int,
    connections: int,
    rollout_lease: float,
    build_limits: tuple[str, ...],
) -> None:
    """Serve the platform to a team: models, training, traces and inference."""
    from hud_platform.process.config import PlatformConfig
    from hud_platform.server import serve

    now = settings.load()
    config = PlatformConfig(
        home=now.home,
        database=database or now.database_url,
        storage=storage,
        keys=True,
        engine="worker",
        rollout_workers=workers,
        engines=engines,
        connections=connections,
        rollout_lease_seconds=rollout_lease,
        builds=_limits(build_limits),
    )
    serve(config, host, port, _announce)
    click.echo("Stopped.")


def _limits(texts: tuple[str, ...]) -> BuildLimits:
    from hud_platform.process.config import BuildLimits

    names = {field.name for field in fields(BuildLimits)}
    limits: dict[str, int] = {}
    for pair in texts:
        name, _, value = pair.partition("=")
        if name not in names or not value.isdigit() or int(value) == 0:
            raise UsageError(
                f"--build-limit {pair!r} is not NAME=NUMBER with one of {', '.join(sorted(names))}."
            )
        limits[name] = int(value)
    return BuildLimits(**limits)


def _exports(variables: dict[str, str]) -> str:
    return "export " + shlex.join(f"{name}={value}" for name, value in variables.items())


def _announce(address: Address, key: str | None) -> None:
    click.echo(f"OpenHUD is up at {address.url}  (documentation: {address.url}/docs)")
    if key is not None:
        click.echo("\nThis is the first key, an admin's. It is shown only now:")
        click.echo(f"  {key}")
    url, others = {"HUD_API_URL": address.url}, dict(address.variables)
    del others["HUD_API_URL"]
    click.echo("\nA client needs:")
    click.echo(f"  {_exports(url | ({'HUD_API_KEY': key} if key is not None else {}))}")
    if key is None:
        click.echo("and HUD_API_KEY; a new key:  hud keys create NAME --scope train")
    click.echo("\nA client written for HUD's hosted platform needs these, too:")
    click.echo(f"  {_exports(others)}")
    click.echo("\nThen, for instance:")
    click.echo("  hud init my-environment")
    click.echo("  hud models create my-policy --tasks my-environment/tasks.py    # a small one")
    click.echo("  hud eval my-environment/tasks.py my-policy --all --group 8     # recorded here")
    click.echo("\nStop: Ctrl-C")
