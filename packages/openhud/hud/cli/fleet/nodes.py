"""`hud fleet nodes`, `cordon`, `open`, `drain`: the machines of the fleet."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from hud.cli.output import lines_of, print_json, tell, wrapped
from hud.cli.platform_requests import ask

_DONE = {
    "cordon": "takes nothing more, and stays; hud fleet open {name} lets it take again.",
    "open": "takes rollouts again.",
    "drain": "takes nothing more, and leaves when it holds nothing.",
}

_COLUMNS = ("id", "name", "state", "running", "per min", "finished", "preempted")


@click.command("nodes")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_nodes(as_json: bool) -> None:
    """List the fleet's nodes: state, load, labels, capacity."""
    answer = ask("get", "/v2/fleet-nodes")
    if as_json:
        print_json(answer)
        return
    if not answer["items"]:
        click.echo(
            "No machine has joined. Make a pass, and see how to join with it: hud fleet pass create NAME"
        )
        return
    for line in _lines(answer["items"]):
        click.echo(line)
    if answer["notice"]:
        click.echo(answer["notice"])
    for node in answer["items"]:
        if node["alarm"]:
            click.echo(f"{node['name']}: {node['alarm']}")


def _lines(nodes: list[dict[str, Any]]) -> list[str]:
    """Return the nodes as a table, with a node's labels and capacity below its row: together they are wider than a terminal."""
    rows = [
        (
            node["id"][:8],
            node["name"],
            node["status"] + (" !" if node["alarm"] else ""),
            f"{node['running']}/{node['room']}",
            f"{node['per_minute']:g}",
            str(node["finished"]),
            str(node["preemptions"]),
        )
        for node in nodes
    ]
    head, *shown = lines_of(_COLUMNS, rows, left=_COLUMNS[:3], shrinks="name")
    lines = [head]
    for node, line in zip(nodes, shown, strict=True):
        labels = [f"{name}={value}" for name, value in node["labels"].items()]
        about = "; ".join(part for part in (" ".join(labels), node["has"]) if part)
        lines += [line, *wrapped(about, 10)]
    return lines


def _action(name: str, help: str) -> click.Command:
    @click.command(name, help=help)
    @click.argument("node")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    def act(node: str, as_json: bool) -> None:
        row = ask("post", f"/v2/fleet-nodes/{quote(node, safe='')}/{name}")
        tell(as_json, row, f"{row['name']} {_DONE[name].format(name=row['name'])}")

    return act


ACTIONS = (
    _action("cordon", "Let a node, named by id or name, take nothing more."),
    _action("open", "Let a node that was cordoned take rollouts again."),
    _action("drain", "Let a node take nothing more, and leave when it holds nothing."),
)
