"""Commands that packages add, by entry points of the group `hud.commands`.

The entry point `chess` is `hud chess`, and `models.chess` is `hud models chess`. Its object is a `click.Command`, which is
imported when it is called, and for the help of its group.
"""

from __future__ import annotations

import click

from hud.cli.option_checks import check_options
from hud.plugs import load, plugs

GROUP = "hud.commands"


def plugged_names(prefix: str = "") -> list[str]:
    """Return the names of the added commands whose entry points are a prefix and one more word; nothing is imported."""
    names = [name.removeprefix(prefix) for name in plugs(GROUP) if name.startswith(prefix)]
    return [name for name in names if "." not in name]


def plugged(name: str) -> click.Command | None:
    """Return an added command by its entry point's name, None for another name.

    Raises `UsageError` for one that cannot be imported or is no command.
    """
    point = plugs(GROUP).get(name)
    if point is None:
        return None
    command = load(point, click.Command)
    check_options(command)
    return command


class ExtensibleGroup(click.Group):
    """A group of `hud` to which packages add commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *plugged_names(f"{self.name}.")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or plugged(f"{self.name}.{cmd_name}")
