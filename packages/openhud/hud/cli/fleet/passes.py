"""`hud fleet pass`: passes with which machines join the fleet."""

from __future__ import annotations

import click

from hud import settings
from hud.cli.output import console, print_json, table, tell
from hud.cli.platform.keys import duration, key_state, listed
from hud.cli.platform_requests import ask, run


@click.group("pass")
def command() -> None:
    """Make, list and revoke passes with which machines join the fleet."""


@command.command("create")
@click.argument("name")
@click.option(
    "--expires", metavar="TIME", help="How long it lasts, such as 12h or 30d; default: for ever."
)
@click.option("--quiet", "-q", is_flag=True, help="Print the pass and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(name: str, expires: str | None, quiet: bool, as_json: bool) -> None:
    """Make a pass and show it, once. Its workers take rollouts of your team, and may do nothing else."""
    body = {"name": name, "expires_in": None if expires is None else duration(expires)}
    made = ask("post", "/v2/fleet-passes", body)
    if as_json:
        print_json(made)
    elif quiet:
        click.echo(made["key"])
    else:
        click.echo(f"Made the pass {made['name']}. It is shown only now:")
        click.echo(f"  {made['key']}")
        url = settings.load().api_url
        if url is None:
            click.echo("It is used with the address that hud up prints, on a machine with openhud:")
            url = "http://HOST:8000"
        else:
            click.echo("Join with it, on a machine with openhud:")
        click.echo(f"  HUD_API_KEY={made['key']} hud fleet join {url}")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_passes(as_json: bool) -> None:
    """List the team's passes, without their secrets."""
    answer = run(listed("/v2/fleet-passes"))
    if as_json:
        print_json(answer)
        return
    if not answer["items"]:
        click.echo("There are no passes yet. Make one: hud fleet pass create NAME")
        return
    shown = table("id", "name", "pass", "state", "last used")
    for row in answer["items"]:
        used = (row["last_used_at"] or "never")[:16].replace("T", " ")
        shown.add_row(row["id"][:8], row["name"], row["start"] + "…", key_state(row), used)
    console().print(shown)


@command.command("revoke")
@click.argument("reference", metavar="PASS")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def revoke(reference: str, as_json: bool) -> None:
    """Revoke a pass, named by id, start of an id, or name; its workers are refused at once."""
    revoked = ask("delete", f"/v2/fleet-passes/{reference}")
    tell(as_json, revoked, f"Revoked the pass {revoked['name']} ({revoked['start']}…).")
