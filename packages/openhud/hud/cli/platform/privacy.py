"""`hud privacy`: what is redacted of imported runs, how long they stay, and whether they may be trained on."""

from __future__ import annotations

from typing import Any

import click

from hud.cli.output import console, print_json
from hud.cli.platform_requests import ask
from hud.errors import UsageError


@click.command("privacy", epilog="More: docs/importing.md")
@click.argument("source")
@click.option(
    "--redact",
    metavar="RULE",
    multiple=True,
    help="keys, mail, or a regular expression; replaces all rules of the source.",
)
@click.option("--no-redaction", is_flag=True, help="Redact nothing.")
@click.option("--keep-days", metavar="DAYS", help="Delete runs that are older; `all` keeps them.")
@click.option(
    "--train/--no-train", "may_train", default=None, help="Whether runs may be trained on."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    source: str,
    redact: tuple[str, ...],
    no_redaction: bool,
    keep_days: str | None,
    may_train: bool | None,
    as_json: bool,
) -> None:
    """Show or set the policy for runs imported from SOURCE, such as claude-code or otlp.

    Texts are redacted before anything is stored. By default, keys are, except from jsonl.
    """
    path = f"/v2/sources/{source}/policy"
    policy: dict[str, Any] = ask("get", path)
    changes: dict[str, Any] = {}
    if redact and no_redaction:
        raise UsageError("Give --redact or --no-redaction.")
    if redact or no_redaction:
        changes["redact"] = list(redact)
    if keep_days is not None:
        changes["keep_days"] = _days(keep_days)
    if may_train is not None:
        changes["may_train"] = may_train
    if changes:
        body = {name: policy[name] for name in ("redact", "keep_days", "may_train")} | changes
        policy = ask("put", path, body)
    if as_json:
        print_json(policy)
        return
    duration = f"{policy['keep_days']} days" if policy["keep_days"] else "for ever"
    console().print(f"redacted  {', '.join(policy['redact']) or 'nothing'}", markup=False)
    console().print(f"kept      {duration}")
    console().print(f"training  {'allowed' if policy['may_train'] else 'refused'}")


def _days(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise UsageError(f"--keep-days takes a number of days or `all`, not {text!r}.")
    return int(text)
