"""`hud optimize`: a search of a model's system prompt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from hud.cli.main import INTERRUPTED
from hud.cli.output import console, count, number, print_json
from hud.cli.training.config_options import config_options
from hud.eval.results.intervals import with_interval

if TYPE_CHECKING:
    from hud.train.prompt_search.config import PromptSearchConfig
    from hud.train.prompt_search.search import PromptReport

HELD = 1
"""Exit code of a search whose best prompt is not the head."""


def _search_options(function: Any) -> Any:
    from hud.train.prompt_search.config import PromptSearchConfig

    every = PromptSearchConfig.model_fields
    fields = {name: every[name] for name in every if name not in ("model", "tasks")}
    return config_options(fields, {"held_out": "TASKS"})(function)


@click.command(
    name="optimize",
    epilog="Repeat the command to resume a stopped or killed search. Exit code 1: no prompt was promoted.",
)
@click.argument("tasks")
@click.option("--model", required=True, help="Slug or id of the model.")
@click.option("--fresh", is_flag=True, help="Start a new search, also where one has finished.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, at the end.")
@_search_options
def command(tasks: str, fresh: bool, as_json: bool, **options: Any) -> int:
    """Search a system prompt for a model on TASKS (.py, .json, .jsonl, or a folder), and serve it if held-out tasks show a gain.

    A model reads runs with their grades and proposes prompts; the best one becomes a checkpoint with the same weights, which the gate
    compares with the head.
    """
    from hud.train.prompt_search.config import make_search_config

    options["held_out"] = list(options["held_out"]) or None
    values = {name: value for name, value in options.items() if value is not None}
    config = make_search_config({"tasks": tasks, **values})
    return asyncio.run(_search(config, fresh=fresh, as_json=as_json))


async def _search(config: PromptSearchConfig, *, fresh: bool, as_json: bool) -> int:
    from hud.cli.training.reflector import reflector_of
    from hud.cli.training.search_lines import SearchLines
    from hud.eval import StopSignal
    from hud.train.monitoring.progress import Reporter
    from hud.train.prompt_search.search import search_prompt

    stop = StopSignal()
    reporter = Reporter() if as_json else SearchLines(config.model, console())
    with stop.on_interrupt():
        report = await search_prompt(
            config,
            reflector=reflector_of(config.reflector),
            reporter=reporter,
            stop=stop,
            fresh=fresh,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        tell_search(report)
    if not report.finished and stop.stopping:
        return INTERRUPTED
    return 0 if report.promoted else HELD


def tell_search(report: PromptReport) -> None:
    """Print the result of a search."""
    from hud.train.budgeted.budget import Spent

    out = console()
    out.print(
        f"\n{count(report.iterations, 'iteration')}, {count(report.accepted, 'proposal')} accepted; "
        f"on the validation tasks {report.before:.3f} before, {report.after:.3f} with the best prompt, which was chosen there."
    )
    judgement = report.judgement
    if judgement is None:
        out.print(f"  {report.note}", markup=False)
    else:
        gain = with_interval(judgement.gain or 0.0, judgement.low, judgement.high, signed=True)
        out.print(
            f"  held-out {number(judgement.before)} to {number(judgement.after)}, gain {gain} on {count(judgement.tasks, 'task')}",
            markup=False,
        )
        for reason in judgement.reasons:
            out.print(f"  {reason}", markup=False)
    out.print(f"  spent    {Spent(**report.spent)} of {report.budget}", markup=False)
    if report.promoted:
        out.print(f"{report.model} serves the prompt: hud models prompt {report.model}")
    elif report.checkpoint_id is not None:
        out.print(f"Held. To read it: hud models prompt {report.model} {report.checkpoint_id[:12]}")
