"""`hud view`: the dashboard over the embedded store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hud import settings
from hud.cli.option_checks import PORT
from hud.errors import UsageError


@click.command("view", epilog="For a team, with keys: hud up")
@click.argument("job", required=False)
@click.option(
    "--port", type=PORT, default=0, metavar="PORT", help="Port of 127.0.0.1; default: a free one."
)
@click.option(
    "--export",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write the pages of JOB into a new folder, to open from the disk, and end.",
)
@click.option("--no-browser", is_flag=True, help="Print the address, without opening it.")
def command(job: str | None, port: int, folder: Path | None, no_browser: bool) -> None:
    """Open the dashboard of this machine's records; no server is needed.

    JOB: the job of --export, by its id, or the id's start.
    """
    from hud_dashboard.local.server import view
    from hud_platform.process.config import PlatformConfig

    now = settings.load()
    if not now.embedded:
        raise UsageError(
            f"HUD_API_URL points to {now.api_url}, which has a dashboard of its own: open it there, "
            "or unset HUD_API_URL to view what was recorded on this machine."
        )

    if (folder is None) != (job is None):
        raise UsageError("A job is exported into a folder: hud view JOB --export FOLDER")
    if folder is not None and job is not None:
        _export(now, job, folder)
        return

    def announce(url: str) -> None:
        click.echo(f"The dashboard: {url}")
        click.echo("The address works once, for one browser. Stop: Ctrl-C")
        if not no_browser:
            click.launch(url)

    view(PlatformConfig(home=now.home, database=now.database_url), port, announce)
    click.echo("Stopped.")


def _export(now: Any, job: str, folder: Path) -> None:
    from contextlib import closing

    from hud_dashboard.bundle.folder import export_job
    from hud_platform.store import Store
    from hud_platform.store.tables import LOCAL_TEAM

    with closing(Store.open(now.home, now.database_url)) as store:
        count = export_job(store, LOCAL_TEAM, job, folder)
    click.echo(f"Wrote the job with {count:,} runs. Open: {folder / 'index.html'}")
