"""`hud search`: runs by what was said, called and returned."""

from __future__ import annotations

from typing import Any

import click

FIELDS = """\b
prompt: answer: thought: tool: argument: result: error:
  a field of what was said, called and returned
task: env: model: job: status: failure: source:
  a field of the run
reward: turns: tokens: cost: seconds:
  a number, as in reward:<0.5, turns:>=10 or reward:0.2..0.8"""


@click.command(
    name="search",
    epilog=f"{FIELDS}\n\nOne run, step by step: hud trace ID",
    # "-word" excludes a word.
    context_settings={"ignore_unknown_options": True},
)
@click.argument("query", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(query: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Find runs, the newest first.

    Every word of QUERY must occur, as a word or as the beginning of one. '"Words in quotes"' follow one another, -word must not
    occur, and tool:sql searches one field.
    """
    from hud.cli.platform_requests import run

    run(_search(" ".join(query), limit, as_json))


async def _search(text: str, limit: int, as_json: bool) -> None:
    from hud.cli.output import console, lines_of, number, print_json
    from hud.client import connect

    hits = await connect().get("/v2/search", params={"text": text, "limit": limit})
    if as_json:
        print_json(hits)
        return
    out = console()
    rows = [
        [
            run["trace_id"][:12],
            run["label"],
            number(run["reward"]),
            run["failure_kind"] or run["status"],
            _passage(run["snippet"]),
        ]
        for run in hits["items"]
    ]
    names = ["trace", "task", "reward", "end", "match"]
    left = ["trace", "task", "end", "match"]
    for line in lines_of(names, rows, left=left, shrinks="match") if rows else []:
        out.print(line, markup=False)
    out.print(_count(hits), markup=False)
    if rows:
        out.print(f"Next: hud trace {rows[0][0]}")


def _passage(snippet: dict[str, Any]) -> str:
    """Return a hit's text on one line, with its field."""
    text = " ".join("".join(part["text"] for part in snippet["parts"]).split())
    return f"{snippet['where']}: {text}" if snippet["where"] else ""


def _count(hits: dict[str, Any]) -> str:
    more, shown = "+" * hits["more"], len(hits["items"])
    first = f", the newest {shown:,} of them above" if shown < hits["total"] else ""
    runs = f"{hits['total']:,}{more} {'run' if hits['total'] == 1 else 'runs'}{first}."
    if hits["missing"]:
        runs += f" {hits['missing']:,} of {hits['runs']:,} runs are not indexed yet; search again for them."
    return runs
