"""`hud improve`: a policy climbs from a prompt to reinforcement within one budget."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from hud.cli.main import INTERRUPTED
from hud.cli.output import console, number, print_json, table
from hud.cli.training.config_options import config_options
from hud.eval.results.intervals import with_interval
from hud.train.monitoring.progress import Reporter

if TYPE_CHECKING:
    from hud.train.improvement.config import ImproveConfig
    from hud.train.improvement.report import ImprovementReport

HELD = 1
"""Exit code of an improvement of which nothing was promoted."""
_REPEATED = {"held_out": "TASKS", "against": "MODEL", "skip": "RUNG"}


def _improve_options(function: Any) -> Any:
    from hud.train.improvement.config import ImproveConfig

    every = ImproveConfig.model_fields
    own = ("model", "tasks", "budget")
    fields = {name: every[name] for name in every if name not in own}
    return config_options(fields, _REPEATED)(function)


@click.command(
    name="improve",
    epilog="Repeat the command to resume a stopped or killed improvement. Exit code 1: nothing was promoted.",
)
@click.argument("model")
@click.argument("tasks")
@click.option(
    "--budget",
    required=True,
    help="Most money, time or rollouts of all rungs together, such as 5usd, 2h or 5000rollouts; several with commas.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and play nothing.")
@click.option("--fresh", is_flag=True, help="Start anew, also where an improvement has finished.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, at the end.")
@_improve_options
def command(dry_run: bool, fresh: bool, as_json: bool, **options: Any) -> int:
    """Improve MODEL on TASKS (.py, .json, .jsonl, or a folder): a prompt, imitation of its best runs, distillation, reinforcement.

    Each rung is promoted only if held-out tasks show a gain, and a report says what each brought and cost.
    """
    from hud.train.improvement.config import make_improve_config

    options |= {name: list(options[name]) or None for name in _REPEATED}
    values = {name: value for name, value in options.items() if value is not None}
    config = make_improve_config(values)
    if dry_run:
        _print_plan(config, as_json=as_json)
        return 0
    return asyncio.run(_improve(config, fresh=fresh, as_json=as_json))


async def _improve(config: ImproveConfig, *, fresh: bool, as_json: bool) -> int:
    from hud.cli.training.reflector import reflector_of
    from hud.cli.training.search_lines import Notes
    from hud.eval import StopSignal
    from hud.train.improvement.ladder import improve

    stop = StopSignal()
    with stop.on_interrupt():
        report = await improve(
            config,
            reflector=reflector_of(config.reflector),
            reporter=Reporter() if as_json else Notes(console()),
            stop=stop,
            fresh=fresh,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        _tell(report)
    if stop.stopping:
        return INTERRUPTED
    return 0 if report.promoted else HELD


def _print_plan(config: ImproveConfig, *, as_json: bool) -> None:
    from dataclasses import asdict

    from hud.train.budgeted.splits import splits_of
    from hud.train.improvement.ladder import plan_of
    from hud.train.improvement.plan import reason_to_skip

    splits = splits_of(config)
    measured, plan = plan_of(config, splits)
    rows = [{**asdict(rung), "skipped": reason_to_skip(rung)} for rung in plan]
    comparison = len(splits.held_out) * config.eval_group
    if as_json:
        print_json({"measured": measured, "comparison_of_the_head": comparison, "rungs": rows})
        return
    out = console()
    out.print(
        f"Budget {config.budget}. {len(splits.tasks)} training tasks, {len(splits.held_out)} held-out ones. Nothing is played.",
        markup=False,
    )
    shown = table("rung", "rollouts at least", "at most", "comparison", "note")
    shown.add_row(
        "measure",
        f"{measured:,}",
        f"{measured:,}",
        f"{comparison:,}",
        "signal and headroom; the head's runs",
    )
    for row in rows:
        note = row["skipped"] or "decided by the measurement"
        cells = (f"{row['least']:,}", f"{row['most']:,}", f"{row['judged']:,}")
        shown.add_row(row["name"], *cells, note)
    out.print(shown)


def _tell(report: ImprovementReport) -> None:
    from hud.train.budgeted.budget import Spent

    out = console()
    out.print()
    shown = table("rung", "gain on held-out tasks", "rollouts", "seconds", "result")
    for rung in report.rungs:
        judged = rung.judgement
        gain = "–"
        if judged is not None:
            gain = with_interval(judged.gain or 0.0, judged.low, judged.high, signed=True)
        shown.add_row(
            rung.name,
            gain,
            f"{rung.spent['rollouts']:,}",
            f"{rung.spent['seconds']:,.0f}",
            rung.outcome if judged is not None else f"{rung.outcome}: {rung.reason}",
        )
    out.print(shown)
    if report.standing is not None:
        standing = report.standing
        out.print(
            f"At the start {number(standing.mean)} on {standing.tasks} training tasks, best of {standing.group} {number(standing.best)}."
        )
    out.print(
        f"Spent {Spent(**report.spent)} of {report.budget}. "
        f"Intervals of single comparisons at {1 - 0.05 / report.looks:.2%}: {report.looks} rungs share the error of 5%.",
        markup=False,
    )
    out.print(report.verdict if report.rungs else report.note, markup=False)
    if report.note and report.rungs:
        out.print(report.note, markup=False)
