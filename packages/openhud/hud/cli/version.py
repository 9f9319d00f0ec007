"""`hud version`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from hud import __version__, settings


@click.command(name="version")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Print the version, and the versions of the main dependencies."""
    parts = {
        "openhud": __version__,
        "python": platform.python_version(),
        "torch": _version("torch"),
    }
    where = settings.load()
    if as_json:
        click.echo(json.dumps({**parts, "home": str(where.home), "api_url": where.api_url}))
        return
    click.echo("  ".join(f"{name} {version or 'not installed'}" for name, version in parts.items()))
    click.echo(f"store  {where.api_url or where.home}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
