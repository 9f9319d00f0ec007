"""`hud secrets`: a team's keys for providers and vLLM servers."""

from __future__ import annotations

import sys

import click

from hud.cli.output import print_json
from hud.cli.platform_requests import run
from hud.client import connect


@click.group("secrets")
def command() -> None:
    """Store providers' keys for your team on the platform, for `--key-env` and for providers' own models."""


@command.command("set")
@click.argument("name", metavar="NAME_API_KEY")
def set_secret(name: str) -> None:
    """Store a key; its value is prompted for, or read from standard input."""
    if sys.stdin.isatty():
        value = click.prompt("Value", hide_input=True, err=True)
    else:
        value = sys.stdin.readline()
    value = value.strip()
    run(connect().put(f"/v2/secrets/{name}", {"value": value}))
    click.echo(f"Kept {name}. Use it: hud models add NAME --url URL --key-env {name}")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_secrets(as_json: bool) -> None:
    """List the names of your team's keys."""
    answer = run(connect().get("/v2/secrets"))
    if as_json:
        print_json(answer)
        return
    for item in answer["items"]:
        click.echo(item["name"])
    if not answer["items"]:
        click.echo("Your team keeps no keys yet. Keep one: hud secrets set OPENAI_API_KEY")


@command.command("remove")
@click.argument("name", metavar="NAME_API_KEY")
def remove(name: str) -> None:
    """Delete a key."""
    run(connect().delete(f"/v2/secrets/{name}"))
    click.echo(f"Removed {name}.")
