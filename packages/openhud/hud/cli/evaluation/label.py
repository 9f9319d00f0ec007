"""`hud label`: labels, notes and tags on runs, jobs and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(
    name="label", epilog="Label runs one after another in the browser: hud view, /review"
)
@click.argument("subject", required=False)
@click.argument("labels", nargs=-1, metavar="[NAME[=VALUE]]...")
@click.option(
    "--kind",
    type=click.Choice(["run", "job", "checkpoint"]),
    default="run",
    show_default=True,
    help="Kind of SUBJECT.",
)
@click.option("--note", help="A note, kept with the label.")
@click.option("--as", "rater", metavar="RATER", help="Name of the rater; default: the key's.")
@click.option(
    "--over",
    metavar="RUN",
    help="Record that SUBJECT is better than this run of the same task; LABELS name criteria other than `better`.",
)
@click.option("--equal-to", metavar="RUN", help="Like --over: both are equally good.")
@click.option(
    "--comparisons",
    metavar="NAME",
    help="Show the agreement of raters on the runs that they compared by a criterion, and how often the left one was chosen.",
)
@click.option("--agreement", metavar="NAME", help="Show the agreement of raters on a label.")
@click.option(
    "--calibration",
    metavar="NAME",
    help="Show the agreement of a grader with people's labels, and its best threshold.",
)
@click.option(
    "--grader",
    default="reward",
    show_default=True,
    help="With --calibration: reward, the name of a subscore, or a rater (review:MODEL).",
)
@click.option(
    "--dataset",
    metavar="NAME",
    help="Write a data set of the runs with this label, or compared by this criterion, one JSON object a line.",
)
@click.option(
    "--to",
    "form",
    type=click.Choice(["taskset", "sft", "preferences", "comparisons"]),
    default="sft",
    show_default=True,
    help="With --dataset: tasks, conversations, pairs of runs of one task by their label, or pairs that people compared.",
)
@click.option("--least", type=float, help="With --dataset: least mean value of a run's label.")
@click.option("--most", type=float, help="With --dataset: largest mean value of a run's label.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="With --dataset: the file. Default: NAME-FORM.jsonl.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    subject: str | None,
    labels: tuple[str, ...],
    kind: str,
    note: str | None,
    rater: str | None,
    over: str | None,
    equal_to: str | None,
    comparisons: str | None,
    agreement: str | None,
    calibration: str | None,
    grader: str,
    dataset: str | None,
    form: str,
    least: float | None,
    most: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Label SUBJECT, as in hud label RUN correct=1 style=0.5 needs-review; without labels, list those that it has.

    SUBJECT is an id or the start of one. Without SUBJECT, the newest labels are listed.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    if agreement is not None:
        run(_agreement(agreement, as_json))
        return
    if comparisons is not None:
        run(_comparisons(comparisons, as_json))
        return
    other = over or equal_to
    if other is not None:
        if subject is None or (over and equal_to):
            raise UsageError("Compare two runs: hud label RUN --over OTHER, or --equal-to OTHER.")
        choice = "left" if over else "tie"
        compared: dict[str, Any] = {"left": subject, "right": other, "choice": choice}
        if rater is not None:
            compared["rater"] = rater
        run(_compare([{**compared, "name": name} for name in labels or ("better",)], as_json))
        return
    if calibration is not None:
        run(_calibration(calibration, grader, as_json))
        return
    if dataset is not None:
        bounds = {"least": least, "most": most}
        wanted = {name: value for name, value in bounds.items() if value is not None}
        target = output or Path(f"{dataset}-{form}.jsonl")
        rows = run(_dataset({"name": dataset, "to": form, **wanted}))
        _write(rows, target)
        return
    if note is not None and not labels:
        raise UsageError('A note is kept with a label: hud label RUN comment --note "..."')
    bodies = [_body(subject, kind, text, note, rater) for text in labels]
    run(_put(bodies, as_json) if bodies else _list(subject, kind, as_json))


def _body(
    subject: str | None, kind: str, text: str, note: str | None, rater: str | None
) -> dict[str, Any]:
    from hud.errors import UsageError

    name, equals, value = text.partition("=")
    body: dict[str, Any] = {"kind": kind, "subject": subject, "name": name, "note": note}
    if rater is not None:
        body["rater"] = rater
    if equals:
        try:
            body["value"] = float(value)
        except ValueError:
            raise UsageError(f"{text}: the value of a label is a number, as in {name}=1.") from None
    return body


async def _put(bodies: list[dict[str, Any]], as_json: bool) -> None:
    from hud.cli.output import print_json
    from hud.client import connect

    put = [await connect().post("/v2/labels", body) for body in bodies]
    if as_json:
        print_json(put)
    else:
        _print(put)


async def _list(subject: str | None, kind: str, as_json: bool) -> None:
    from hud.cli.output import console, print_json
    from hud.client import connect

    wanted = {} if subject is None else {"kind": kind, "subject": subject}
    items = (await connect().get("/v2/labels", params=wanted))["items"]
    if as_json:
        print_json(items)
    elif items:
        _print(items)
    else:
        console().print("No label yet. Try: hud label RUN correct=1")


async def _compare(bodies: list[dict[str, Any]], as_json: bool) -> None:
    from hud.cli.output import console, print_json
    from hud.client import connect

    added = [await connect().post("/v2/comparisons", body) for body in bodies]
    if as_json:
        print_json(added)
        return
    for row in added:
        sign = ">" if row["choice"] == "left" else "="
        console().print(f"{row['left_id'][:12]} {sign} {row['right_id'][:12]}  {row['name']}, by {row['rater']}", markup=False)  # fmt: skip


async def _comparisons(name: str, as_json: bool) -> None:
    from hud.cli.output import console, count, number, print_json
    from hud.client import connect
    from hud.eval.results.intervals import with_interval

    shown = await connect().get("/v2/comparisons/agreement", params={"name": name})
    if as_json:
        print_json(shown)
        return
    out = console()
    out.print(f"{name}: {count(shown['compared'], 'pair')}, {count(len(shown['raters']), 'rater')}, Krippendorff's alpha {number(shown['alpha'])}", markup=False)  # fmt: skip
    left = shown["left"]
    if left["choices"]:
        share = with_interval(left["share"], left["low"], left["high"])
        out.print(f"left chosen  {share} of {left['choices']:,}; without a preference for a side 0.50", markup=False)  # fmt: skip
    _print_pairs(shown["pairs"], "pairs")


async def _agreement(name: str, as_json: bool) -> None:
    from hud.cli.output import console, number, print_json
    from hud.client import connect

    shown = await connect().get("/v2/labels/agreement", params={"name": name})
    if as_json:
        print_json(shown)
        return
    console().print(f"{name}: {shown['runs']:,} runs, {len(shown['raters'])} raters, Krippendorff's alpha {number(shown['alpha'])}", markup=False)  # fmt: skip
    _print_pairs(shown["pairs"], "runs")


def _print_pairs(pairs: list[dict[str, Any]], subjects: str) -> None:
    """Print the agreement of each pair of raters. `subjects`: name of the column of what both rated."""
    from hud.cli.output import console, lines_of, number

    rows = [
        [*pair["raters"], f"{pair['runs']:,}", f"{pair['equal']:,}", number(pair["kappa"]), number(pair["alpha"])]
        for pair in pairs
    ]  # fmt: skip
    names = ["rater", "and", subjects, "equal", "kappa", "alpha"]
    for line in lines_of(names, rows, left=["rater", "and"], shrinks="and") if rows else []:
        console().print(line, markup=False)


async def _calibration(name: str, grader: str, as_json: bool) -> None:
    from hud.cli.output import console, count, number, print_json
    from hud.client import connect

    query = {"name": name, "grader": grader}
    shown = await connect().get("/v2/labels/calibration", params=query)
    if as_json:
        print_json(shown)
        return
    out = console()
    out.print(f"{grader} and people's {name}: {count(shown['runs'], 'run')}, {shown['good']:,} good, Krippendorff's alpha {number(shown['alpha'])}", markup=False)  # fmt: skip
    out.print(f"threshold  {shown['threshold']:g}: {shown['equal']:,} equal, kappa {number(shown['kappa'])}, {shown['missed']:,} missed, {shown['wrongly_good']:,} wrongly good")  # fmt: skip
    out.print(f"held out   {number(shown['held_out'])} equal")
    if shown["few"]:
        out.print("Fewer than 20 labelled runs are good, or bad: label more before you rely on it.")


async def _dataset(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    from hud.client import connect
    from hud.errors import UsageError

    rows: list[dict[str, Any]] = (await connect().get("/v2/labels/dataset", params=wanted))["items"]
    if not rows:
        if wanted["to"] == "comparisons":
            raise UsageError(
                f"People prefer no run over another one with the same prompt by {wanted['name']!r}: hud label --comparisons NAME "
                "shows what they compared."
            )
        raise UsageError(
            f"No run has the label {wanted['name']!r} with such values, or no two runs of a task differ in it: hud label lists labels."
        )
    return rows


def _write(rows: list[dict[str, Any]], target: Path) -> None:
    from hud import exact_json
    from hud.cli.output import console, count

    lines = [exact_json.dumps(row, option=exact_json.OPT_APPEND_NEWLINE) for row in rows]
    target.write_bytes(b"".join(lines))
    console().print(f"Wrote {count(len(rows), 'row')} to {target}.", markup=False)


def _print(labels: list[dict[str, Any]]) -> None:
    from hud.cli.output import console, lines_of, number

    rows = [
        [label["subject_id"][:12], label["kind"], label["name"], number(label["value"]), label["rater"], label["note"] or ""]
        for label in labels
    ]  # fmt: skip
    names = ["subject", "kind", "label", "value", "rater", "note"]
    left = ["subject", "kind", "label", "rater", "note"]
    for line in lines_of(names, rows, left=left, shrinks="note"):
        console().print(line, markup=False)
