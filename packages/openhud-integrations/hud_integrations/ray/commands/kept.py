"""`hud fleet ray keep`, `serve`, `kept` and `end`: trainers and vLLM servers on the nodes of a Ray cluster."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from hud import settings
from hud.cli.command_line import pairs
from hud.cli.fleet import worker_options
from hud.cli.output import console, print_json, table
from hud.cli.platform_requests import model_path
from hud.errors import UsageError
from hud_integrations.ray.commands import options as ray_options

if TYPE_CHECKING:
    from typing import Unpack

    from hud_integrations.ray.keeper import KeptCommand

Command = Callable[..., Any]

_NODE_OPTIONS = (
    click.option(
        "--on",
        multiple=True,
        metavar="NAME=VALUE",
        help="A label of its node, such as market=spot.",
    ),
    click.option(
        "--gpus",
        type=click.FloatRange(min=0),
        default=0.0,
        help="GPUs of its node.  [default: none]",
    ),
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="An environment variable for it; without a value, the one of this shell.",
    ),
    click.option("--folder", help="Its working folder, an absolute path on its node."),
    click.option(
        "--notice",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="Seconds that it has to end after SIGTERM.",
    ),
)


class NodeOptions(TypedDict):
    """Options of a command that runs on a node."""

    on: tuple[str, ...]
    cpus: float
    gpus: float
    variables: tuple[str, ...]
    folder: str | None
    notice: float


def _on_a_node(cpus: float) -> Callable[[Command], Command]:
    """Add the options of `NodeOptions` to a command, with a default of `cpus`, and its words."""
    options = (
        click.argument(
            "words", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED
        ),
        click.option(
            "--cpus",
            type=click.FloatRange(min=0),
            default=cpus,
            show_default=True,
            help="CPUs of its node.",
        ),
        *_NODE_OPTIONS,
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command("keep")
@click.argument("name")
@_on_a_node(cpus=0.0)
@ray_options.address
def keep(name: str, words: tuple[str, ...], address: str, **node: Unpack[NodeOptions]) -> None:
    """Keep a command running on one node of the cluster until it ends with 0, such as a training.

    It is started again when it fails, and on another node when its node is lost. Exit code 2, bad input, ends it.
    """
    kept_command = _kept(name, words, node)
    from hud_integrations.ray import keeping  # Loads Ray.

    keeping.keep(address, kept_command)
    click.echo(f"The cluster keeps {name}.")
    _say_next(name, address)


@click.command("serve")
@click.argument("url")
@click.argument("model")
@_on_a_node(cpus=1.0)
@ray_options.address
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Number of servers."
)
@click.option(
    "--supervisor-on",
    multiple=True,
    metavar="NAME=VALUE",
    help="A label of the node of their supervisor; default: the head node.",
)
@click.option("--key-env", help="Environment variable of the platform with the servers' key.")
@click.option(
    "--weights",
    type=click.Choice(["folder", "nccl"]),
    help="Transfer of full weights.  [default: folder]",
)
def serve(
    url: str,
    model: str,
    words: tuple[str, ...],
    address: str,
    count: int,
    supervisor_on: tuple[str, ...],
    key_env: str | None,
    weights: str | None,
    **node: Unpack[NodeOptions],
) -> None:
    """Keep vLLM servers of MODEL on the cluster, and have the platform at URL sample it on those that are ready.

    COMMAND starts one; {port} in it stands for a free port. HUD_API_KEY is an admin's key of the platform.
    """
    if not any("{port}" in word for word in words):
        raise UsageError(
            "The command of a server needs {port}, such as: vllm serve FOLDER --port {port}"
        )
    if not (node["cpus"] or node["gpus"]):
        raise UsageError("A server needs --gpus or --cpus above 0: Ray reserves them together.")
    key, url = settings.load().api_key, worker_options.platform_address(url)
    if not key:
        raise UsageError("Naming servers needs an admin's key of the platform: HUD_API_KEY=KEY")
    server = _kept(f"serve-{model}", words, node)
    path = model_path(model)
    supervised = dict(pairs("supervisor-on", "NAME=VALUE", supervisor_on))
    from hud_integrations.ray import keeping  # Loads Ray.
    from hud_integrations.ray.members import MemberSettings

    members = MemberSettings(url, key, path, count, server, key_env, weights)
    keeping.serve(address, members, supervised)
    click.echo(f"The cluster keeps {server.name}: {model} is sampled there once a server is ready.")
    _say_next(server.name, address)


@click.command("kept")
@ray_options.address
@ray_options.as_json
def list_kept(address: str, as_json: bool) -> None:
    """List the commands and servers that the cluster keeps."""
    from hud_integrations.ray import keeping  # Loads Ray.

    commands = keeping.kept_commands(address)
    if as_json:
        print_json(commands)
        return
    if not commands:
        click.echo("The cluster keeps nothing. Start something: hud fleet ray keep --help")
        return
    shown = table("name", "state", "node", "restarts", "last line")
    for command in commands:
        where = command.get("url") or command.get("address") or ""
        shown.add_row(
            command["name"], command["state"], where, str(command["restarts"]), command["said"]
        )
    console().print(shown)


@click.command("end")
@click.argument("name")
@ray_options.address
def end(name: str, address: str) -> None:
    """End a command or servers that the cluster keeps, within their notice."""
    from hud_integrations.ray import keeping  # Loads Ray.

    keeping.end(address, name)
    click.echo(f"{name} has ended.")


def _kept(name: str, words: tuple[str, ...], node: NodeOptions) -> KeptCommand:
    from hud_integrations.ray.keeper import KeptCommand  # Loads Ray.

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        raise UsageError(f"A name has letters, digits, '.', '-' and '_', and no others: {name!r}.")
    folder = node["folder"]
    if folder is not None and not Path(folder).is_absolute():
        raise UsageError(f"--folder is a folder of the node: an absolute path, not {folder!r}.")
    return KeptCommand(
        name,
        words,
        folder,
        variables=dict(_variable(text) for text in node["variables"]),
        on=dict(pairs("on", "NAME=VALUE", node["on"])),
        cpus=node["cpus"],
        gpus=node["gpus"],
        notice=node["notice"],
    )


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator and name not in os.environ:
        raise UsageError(
            f"--env {name} takes the variable of this shell, which has none; or give it: {name}=VALUE"
        )
    return name, value if separator else os.environ[name]


def _say_next(name: str, address: str) -> None:
    same = "" if address == "auto" else f" --address {shlex.quote(address)}"
    click.echo(f"Next: hud fleet ray kept{same}")
    click.echo(f"End it: hud fleet ray end {name}{same}")
