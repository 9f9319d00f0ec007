"""`hud fleet ray`: workers of the fleet on the nodes of a Ray cluster."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click

from hud.cli.command_line import pairs
from hud.cli.fleet import worker_options
from hud.cli.output import console, print_json, table
from hud.errors import UsageError
from hud_integrations.ray.commands import kept as kept_commands
from hud_integrations.ray.commands import options as ray_options

_name = click.option(
    "--name", default="fleet", show_default=True, help="Name of the fleet on the cluster."
)


@click.group("ray")
def command() -> None:
    """Keep workers on the nodes of a Ray cluster, and trainers and vLLM servers; Ray carries no rollouts."""


@command.command("up")
@click.argument("url")
@ray_options.address
@_name
@click.option(
    "--hosts",
    default="1..8",
    show_default=True,
    metavar="MIN..MAX",
    help="Bounds of the number of nodes that play, by the length of the queue.",
)
@worker_options.rollouts
@click.option(
    "--on",
    multiple=True,
    metavar="NAME=VALUE",
    help="A label of the nodes that play, such as market=spot.",
)
@click.option(
    "--supervisor-on",
    multiple=True,
    metavar="NAME=VALUE",
    help="A label of the node of the supervisor, such as market=on-demand; default: the head node.",
)
@click.option(
    "--cache",
    help="Folder on each node for environments that were fetched; default: HUD_HOME/fleet.",
)
@worker_options.pass_file
@worker_options.notice
@worker_options.images
@ray_options.as_json
def up(
    url: str,
    address: str,
    name: str,
    hosts: str,
    rollouts: int,
    on: tuple[str, ...],
    supervisor_on: tuple[str, ...],
    cache: str | None,
    pass_file: Path | None,
    notice: float,
    images: bool,
    as_json: bool,
) -> None:
    """Start a fleet that plays rollouts of the platform at URL, the address that the nodes reach."""
    key, url = worker_options.read_pass(pass_file), worker_options.platform_address(url)
    least, most = bounds(hosts)
    if cache is not None and not Path(cache).is_absolute():
        raise UsageError(f"--cache is a folder of each node: an absolute path, not {cache!r}.")
    wanted = dict(pairs("on", "NAME=VALUE", on))
    supervised = dict(pairs("supervisor-on", "NAME=VALUE", supervisor_on))
    from hud_integrations.ray import launcher  # Loads Ray.
    from hud_integrations.ray.placement import FleetSettings

    settings = FleetSettings(
        url=url,
        key=key,
        name=name,
        least=least,
        most=most,
        rollouts=rollouts,
        on=wanted,
        cache=cache,
        notice=notice,
        images=images,
    )
    status = launcher.up(address, settings, supervised)
    if as_json:
        print_json(status)
        return
    where = f" with {' '.join(on)}" if on else ""
    click.echo(
        f"The fleet {name} is up: {status['wanted']} of {hosts} hosts wanted, {status['nodes']} nodes{where}, "
        f"{rollouts} rollouts a host."
    )
    same = "" if name == "fleet" else f" --name {shlex.quote(name)}"
    same += "" if address == "auto" else f" --address {shlex.quote(address)}"
    click.echo(f"Next: hud fleet ray status{same}")
    click.echo(f"Stop it: hud fleet ray down{same}")


@command.command("status")
@ray_options.address
@_name
@ray_options.as_json
def status(address: str, name: str, as_json: bool) -> None:
    """Show the hosts of a fleet, and the queue that they play."""
    from hud_integrations.ray import launcher  # Loads Ray.

    state = launcher.status(address, name)
    if as_json:
        print_json(state)
        return
    queue = state["queue"]
    backlog = (
        "the platform does not answer"
        if queue is None
        else f"{queue['waiting']} rollouts wait, {queue['running']} are played"
    )
    click.echo(
        f"{state['name']}: {len(state['hosts'])} hosts, {state['wanted']} wanted of "
        f"{state['least']}..{state['most']}, on {state['nodes']} nodes; {backlog}."
    )
    for problem in (state["problem"], state["last_loss"]):
        if problem is not None:
            click.echo(problem)
    if state["hosts"]:
        shown = table("node", "state", "restarts", "labels", "last line")
        for host in state["hosts"]:
            shown.add_row(*_row(host))
        console().print(shown)


@command.command("down")
@ray_options.address
@_name
def down(address: str, name: str) -> None:
    """End a fleet: rollouts may end within its notice, and the others are handed back."""
    from hud_integrations.ray import launcher  # Loads Ray.

    count = launcher.down(address, name)
    click.echo(f"The fleet {name} is down; {count} hosts ended.")


for _kept in (kept_commands.keep, kept_commands.serve, kept_commands.list_kept, kept_commands.end):
    command.add_command(_kept)


def bounds(text: str) -> tuple[int, int]:
    """Parse MIN..MAX, or one number for both. Raises `UsageError` for anything else."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if most < max(least, 1):
        raise UsageError(f"--hosts takes MIN..MAX, such as 2..8, not {text!r}.")
    return least, most


def _row(host: dict[str, Any]) -> tuple[str, ...]:
    state = host["state"] + (" (its node ends)" if host["node_draining"] else "")
    labels = " ".join(
        f"{name}={value}" for name, value in host["labels"].items() if "ray.io/" not in name
    )
    return host["node"], state, str(host["restarts"]), labels, host["said"]
