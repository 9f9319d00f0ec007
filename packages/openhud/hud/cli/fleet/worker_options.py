"""Options of the commands that start workers of the fleet, and what they have in common."""

from __future__ import annotations

from pathlib import Path

import click

from hud import settings
from hud.errors import UsageError
from hud.input_files import read_input_text

rollouts = click.option(
    "--rollouts",
    type=click.IntRange(min=1, max=65_536),
    default=16,
    show_default=True,
    help="Most rollouts of a worker at a time.",
)
pass_file = click.option(
    "--pass-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the pass; default: HUD_API_KEY.",
)
notice = click.option(
    "--notice",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    help="Seconds that rollouts may take to end after SIGTERM; the others are handed back.",
)
images = click.option(
    "--images", is_flag=True, help="Also run environments that are container images."
)


def read_pass(file: Path | None) -> str:
    """Return the pass of a file, or of HUD_API_KEY. Raises `UsageError` where there is none."""
    key = settings.load().api_key if file is None else read_input_text(file).strip()
    if not key:
        raise UsageError(
            "Joining needs a pass: HUD_API_KEY=PASS, or --pass-file. Make one on the platform: hud fleet pass create NAME"
        )
    return key


def platform_address(url: str) -> str:
    """Return an address without its last slash. Raises `UsageError` for text that is none."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url!r} is no address of a platform; write http://HOST:PORT or https://HOST."
        )
    return url.rstrip("/")
