"""`hud outcome`: what became known of a run after its end."""

from __future__ import annotations

import click

from hud.cli.output import console, print_json
from hud.cli.platform_requests import ask
from hud.errors import UsageError


@click.command("outcome", epilog="More: docs/outcomes.md")
@click.argument("trace")
@click.option("--name", help="Name of the value, such as resolved.")
@click.option("--value", type=float, help="The value.")
@click.option("--source", help="Its reporter, such as a person or a system.")
@click.option("--supersedes", metavar="ID", help="The outcome that this one corrects.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    trace: str,
    name: str | None,
    value: float | None,
    source: str | None,
    supersedes: str | None,
    as_json: bool,
) -> None:
    """Add an outcome to the run TRACE, or list its outcomes.

    Outcomes are only added. The run's reward follows from them by the rule of its job (hud reward-rule).
    """
    if (name is None) != (value is None):
        raise UsageError("An outcome has --name and --value.")
    if name is None:
        answer = ask("get", f"/v2/trace/{trace}/outcomes")
    else:
        body = {"name": name, "value": value, "source": source, "supersedes": supersedes}
        answer = ask("post", f"/v2/trace/{trace}/outcome", body)
    if as_json:
        print_json(answer)
        return
    for outcome in [answer] if name is not None else answer["items"]:
        by = f", by {outcome['source']}" if outcome["source"] else ""
        line = f"{outcome['id'][:12]}  {outcome['name']} {outcome['value']:g}{by}  {outcome['created_at']}"
        console().print(line, markup=False)
    reward = answer["reward"]
    console().print("reward  " + ("not measured" if reward is None else f"{reward:g}"))
