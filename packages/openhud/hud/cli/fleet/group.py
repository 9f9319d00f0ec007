"""`hud fleet`: machines that play the rollouts of a platform."""

from __future__ import annotations

import click

from hud.cli.fleet import join, nodes, passes
from hud.cli.plugged_commands import ExtensibleGroup


@click.group("fleet", cls=ExtensibleGroup)
def command() -> None:
    """Join a platform's fleet with this machine; list, cordon and drain its nodes; place workers on a Ray cluster."""


command.add_command(join.command)
command.add_command(passes.command)
for _command in (nodes.list_nodes, *nodes.ACTIONS):
    command.add_command(_command)
