"""`hud fleet join`: play rollouts of a platform on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from hud import settings
from hud.cli.command_line import pairs
from hud.cli.fleet import worker_options
from hud.cli.platform_requests import run
from hud.errors import PlatformError, UsageError


@click.command("join")
@click.argument("url")
@worker_options.rollouts
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="A label of this node, such as market=spot; tasks may require it.",
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for environments that were fetched; default: HUD_HOME/fleet.",
)
@click.option("--name", help="Name of the node; default: this machine's.")
@worker_options.pass_file
@worker_options.notice
@worker_options.images
def command(
    url: str,
    rollouts: int,
    labels: tuple[str, ...],
    cache: Path | None,
    name: str | None,
    pass_file: Path | None,
    notice: float,
    images: bool,
) -> None:
    """Play rollouts of the platform at URL on this machine, until SIGTERM or Ctrl-C."""
    from hud.fleet.joining import join  # Loads the agents.

    key, url = worker_options.read_pass(pass_file), worker_options.platform_address(url)
    work = join(
        url,
        key,
        rollouts=rollouts,
        cache=cache or settings.load().home / "fleet",
        name=name,
        labels=dict(pairs("label", "NAME=VALUE", labels)),
        images=images,
        notice=notice,
        say=lambda line: click.echo(line),
    )
    try:
        run(work)
    except PlatformError as error:
        if error.status not in (401, 403):
            raise
        raise UsageError(
            f"{url} refuses this worker: {error} hud fleet pass create NAME makes a pass."
        ) from error
    click.echo("Left the fleet.")
