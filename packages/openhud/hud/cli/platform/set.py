"""`hud set`: stored settings of this user."""

from __future__ import annotations

import click

from hud import settings
from hud.dotenv import write_dotenv
from hud.errors import UsageError


@click.command("set")
@click.argument("pairs", metavar="KEY=VALUE...", nargs=-1, required=True)
def command(pairs: tuple[str, ...]) -> None:
    """Store settings in HUD_HOME/.env, which only this user can read."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.isidentifier() or "\n" in value:
            raise UsageError(
                f"{pair!r} is not KEY=VALUE, such as HUD_API_URL=http://localhost:8000."
            )
        values[name] = value
    home = settings.home_folder()
    settings.of_variables(home, values)
    path = home / ".env"
    write_dotenv(path, values)
    click.echo(f"Kept {', '.join(values)} in {path}.")
