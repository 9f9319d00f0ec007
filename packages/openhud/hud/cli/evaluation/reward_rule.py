"""`hud reward-rule`: the rule that makes a run's reward of its grade and its outcomes."""

from __future__ import annotations

from typing import Any

import click

from hud.cli.command_line import pairs
from hud.cli.output import console, print_json
from hud.cli.platform_requests import ask
from hud.errors import UsageError


@click.command("reward-rule", epilog="More: docs/outcomes.md")
@click.option(
    "--grade",
    is_flag=True,
    help="The grade (the default); without one, the newest outcome named reward.",
)
@click.option(
    "--newest", metavar="NAME", help="The newest outcome of this name; without one, the grade."
)
@click.option(
    "--sum",
    "weights",
    metavar="NAME=WEIGHT",
    multiple=True,
    help="A weighted sum of the newest outcomes, and of grade.",
)
@click.option("--job", help="For the runs of this job only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    grade: bool, newest: str | None, weights: tuple[str, ...], job: str | None, as_json: bool
) -> None:
    """Set the rule for the rewards of runs with outcomes, or list its versions.

    Rewards change at once, and runs name the version of their rule.
    """
    if grade + (newest is not None) + bool(weights) > 1:
        raise UsageError("A rule is one of --grade, --newest and --sum.")
    if not (grade or newest or weights):
        _list(as_json)
        return
    rule = _rule(newest, weights)
    answer = ask("post", "/v2/reward-rules", {"rule": rule, "job": job})
    if as_json:
        print_json(answer)
    else:
        console().print(f"version {answer['version']}: {_words(rule)}", markup=False)


def _rule(newest: str | None, weights: tuple[str, ...]) -> dict[str, Any]:
    if newest is not None:
        return {"kind": "newest", "name": newest}
    if not weights:
        return {"kind": "grade"}
    try:
        numbers = {name: float(text) for name, text in pairs("sum", "NAME=WEIGHT", weights)}
    except ValueError as error:
        raise UsageError(f"A weight of --sum is a number: {error}.") from None
    return {"kind": "sum", "weights": numbers}


def _list(as_json: bool) -> None:
    items = ask("get", "/v2/reward-rules")["items"]
    if as_json:
        print_json(items)
        return
    if not items:
        console().print("version 0: the grade (no rule is set)")
    for item in items:
        scope = f"job {item['job_id'][:12]}" if item["job_id"] else "all jobs"
        console().print(f"version {item['version']}: {_words(item['rule'])}, {scope}", markup=False)


def _words(rule: dict[str, Any]) -> str:
    match rule["kind"]:
        case "newest":
            return f"the newest {rule['name']}"
        case "sum":
            return " + ".join(f"{weight:g} {name}" for name, weight in rule["weights"].items())
        case _:
            return "the grade"
