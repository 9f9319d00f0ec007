"""`hud fleet join`: play rollouts of a platform on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from hud import settings
from hud.cli.command_line import pairs
from hud.cli.platform_requests import run
from hud.errors import PlatformError, UsageError


@click.command("join")
@click.argument("url")
@click.option(
    "--rollouts",
    type=click.IntRange(min=1, max=65_536),
    default=16,
    show_default=True,
    help="Most rollouts at a time.",
)
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
@click.option(
    "--pass-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the pass; default: HUD_API_KEY.",
)
@click.option(
    "--notice",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    help="Seconds that rollouts may take to end after SIGTERM; the others are handed back.",
)
@click.option("--images", is_flag=True, help="Also run environments that are container images.")
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

    now = settings.load()
    key = now.api_key if pass_file is None else pass_file.read_text(encoding="utf-8").strip()
    if not key:
        raise UsageError(
            "Joining needs a pass: HUD_API_KEY=PASS, or --pass-file. Make one on the platform: hud fleet pass create NAME"
        )
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url!r} is no address of a platform; write http://HOST:PORT or https://HOST."
        )
    work = join(
        url.rstrip("/"),
        key,
        rollouts=rollouts,
        cache=cache or now.home / "fleet",
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
