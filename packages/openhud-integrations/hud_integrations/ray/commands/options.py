"""Options of the commands of `hud fleet ray`."""

from __future__ import annotations

import click

address = click.option(
    "--address",
    default="auto",
    show_default=True,
    envvar="RAY_ADDRESS",
    help="Address of the cluster, HOST:PORT; auto: the one of this machine. Also: RAY_ADDRESS.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
