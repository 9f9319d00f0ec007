"""`hud keys`: API keys of the platform, with scopes and limits."""

from __future__ import annotations

import re
from typing import Any

import click

from hud.cli.output import console, print_json, table, tell
from hud.cli.platform_requests import pages, run
from hud.client import connect
from hud.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


async def listed(path: str) -> dict[str, Any]:
    """Return all `items` of a paged route, and their number, `total`."""
    items = [item async for item in pages(path)]
    return {"items": items, "total": len(items)}


@click.group("keys")
def command() -> None:
    """Make, list and revoke keys: of this machine's platform, or of the server at HUD_API_URL."""


@command.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(("read", "run", "train", "admin")),
    default="train",
    show_default=True,
    help="Permissions; each scope includes those before it.",
)
@click.option("--team", help="Its team; a new name creates a team. Default: yours.")
@click.option("--expires", metavar="TIME", help="Lifetime, such as 12h or 30d; default: unlimited.")
@click.option(
    "--requests-per-minute", type=click.IntRange(min=1), help="Maximum requests per minute."
)
@click.option("--tokens-per-minute", type=click.IntRange(min=1), help="Maximum tokens per minute.")
@click.option("--quiet", "-q", is_flag=True, help="Print the key only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(
    name: str,
    scopes: str,
    team: str | None,
    expires: str | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Create a key and show it, once."""
    body = {
        "name": name,
        "scopes": [scopes],
        "team": team,
        "expires_in": None if expires is None else duration(expires),
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    made = run(connect().post("/v2/keys", {key: value for key, value in body.items() if value}))
    if as_json:
        print_json(made)
    elif quiet:
        click.echo(made["key"])
    else:
        click.echo(f"Made {made['name']} ({', '.join(made['scopes'])}). The key is shown only now:")
        click.echo(f"  {made['key']}")
        click.echo("Use it: hud set HUD_API_KEY=KEY")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(as_json: bool) -> None:
    """List the team's keys, without their secrets."""
    answer = run(listed("/v2/keys"))
    if as_json:
        print_json(answer)
        return
    if not answer["items"]:
        click.echo("There are no keys yet. Make one: hud keys create NAME")
        return
    shown = table("id", "name", "scopes", "key", "state", "last used")
    for key in answer["items"]:
        shown.add_row(
            key["id"][:8],
            key["name"],
            ", ".join(key["scopes"]),
            key["start"] + "…",
            key_state(key),
            (key["last_used_at"] or "never")[:16].replace("T", " "),
        )
    console().print(shown)


@command.command("revoke")
@click.argument("reference", metavar="KEY")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def revoke(reference: str, as_json: bool) -> None:
    """Revoke a key, named by id, start of an id, or name."""
    revoked = run(connect().delete(f"/v2/keys/{reference}"))
    tell(as_json, revoked, f"Revoked {revoked['name']} ({revoked['start']}…).")


def key_state(key: dict[str, Any]) -> str:
    """Return whether a key opens anything, and until when, in short."""
    if key["revoked_at"]:
        return "revoked"
    return f"until {key['expires_at'][:16].replace('T', ' ')}" if key["expires_at"] else "valid"


def duration(text: str) -> float:
    """Return a time such as 45m, 12h or 30d in seconds. Raises `UsageError` for what is none."""
    match = re.fullmatch(r"(\d+)\s*([smhd])", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{text!r} is no time; write 45m, 12h or 30d.")
    return float(int(match[1]) * _SECONDS[match[2]])
