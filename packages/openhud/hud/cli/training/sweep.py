"""`hud train --sweep`: trainings with several values of their settings, and the table of their results."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hud.cli.command_line import pairs
from hud.cli.main import INTERRUPTED
from hud.cli.output import console, count, lines_of, number, print_json, seconds
from hud.eval.results.held_out_scores import Score
from hud.eval.results.intervals import with_interval
from hud.train.monitoring.progress import Reporter

if TYPE_CHECKING:
    from hud.train.run_settings import RunSettings
    from hud.train.sweeps.combinations import Combination
    from hud.train.sweeps.sweep import SweepReport, Training

UNFINISHED = 1
"""Exit code of a sweep of which a combination failed, or was paused by the guard."""


async def sweep_settings(
    make: Callable[[dict[str, Any]], RunSettings],
    values: dict[str, Any],
    axes: Sequence[str],
    yes: bool,
    training: Training | None = None,
    *,
    data: Sequence[str] = (),
    fresh: bool,
    override_guard: bool,
    as_json: bool,
) -> int:
    """Train each combination of the axes, texts such as `lr=1e-5,3e-5`, and print the comparison; return the exit code.

    `data`: identities of what is trained on besides tasks.
    """
    from hud.cli.training.panel import reporter
    from hud.cli.training.search_lines import Notes
    from hud.errors import UsageError
    from hud.eval import StopSignal
    from hud.train.loop import train
    from hud.train.sweeps.combinations import MOST_COMBINATIONS, combinations
    from hud.train.sweeps.sweep import sweep

    texts = pairs("sweep", "SETTING=A,B", axes)
    swept = {name.replace("-", "_"): text.split(",") for name, text in texts}
    every = combinations(make, values, swept)
    if len(every) > MOST_COMBINATIONS and not yes:
        raise UsageError(
            f"The sweep has {len(every)} combinations, each a training of its own; give fewer values, or --yes."
        )
    stop = StopSignal()

    @contextmanager
    def shown(combination: Combination, config: RunSettings) -> Iterator[Reporter]:
        if not as_json:
            place = f"{every.index(combination) + 1}/{len(every)}"
            console().print(f"\nSweep {place}: {combination.label}", markup=False)
        with reporter(config, stop, quiet=as_json) as shown_to:
            yield shown_to

    notes = Reporter() if as_json else Notes(console())
    with stop.on_interrupt():
        report = await sweep(
            every,
            training or train,
            data=data,
            showing=shown,
            reporter=notes,
            stop=stop,
            fresh=fresh,
            override_guard=override_guard,
        )
    command = _promotion(report, every[0].config)
    if as_json:
        print_json({**report.as_dict(), "command": command, "interrupted": stop.stopping})
    else:
        _tell(report, command)
    if stop.stopping:
        return INTERRUPTED
    return 0 if all(row.finished for row in report.rows) else UNFINISHED


def _tell(report: SweepReport, command: str | None) -> None:
    out = console()
    out.print()
    names = ["combination", "base", "final", "rollouts", "time", "model", "checkpoint"]
    cells = [
        [
            row.label,
            "–" if row.before is None else number(row.before.mean),
            _score(row.after),
            f"{row.rollouts:,}",
            seconds(row.seconds),
            row.model,
            (row.checkpoint or "base")[:8],
        ]
        for row in report.rows
    ]
    for line in lines_of(names, cells, left=("combination", "model"), shrinks="model"):
        out.print(line, markup=False)
    if len(bases := {_score(row.before) for row in report.rows if row.before is not None}) == 1:
        out.print(f"Held-out score of the base: {bases.pop()}")
    for row in report.rows:
        if row.reason:
            out.print(f"{row.label}: {row.reason}", markup=False, soft_wrap=True)
    if report.ranking is None:
        done = sum(row.finished for row in report.rows)
        out.print(
            f"Stopped after {count(done, 'combination')}; give the same command again to go on."
        )
        return
    out.print(report.ranking.verdict, markup=False, soft_wrap=True)
    if command is not None:
        out.print(f"Take it: {command}", markup=False, soft_wrap=True)


def _score(score: Score | None) -> str:
    return "–" if score is None else with_interval(score.mean, score.low, score.high)


def _promotion(report: SweepReport, config: RunSettings) -> str | None:
    """Return the command that takes the best combination; None without one."""
    best = report.best
    if best is None or best.checkpoint is None:
        return None
    files = [source for source in config.held_out if not source.startswith("benchmark:")]
    words = ["hud", "models", "promote", report.model, best.checkpoint[:12], "--from", best.model]
    words += ["--tasks", files[0] if files else "TASKS"]
    for name in ("max_turns", "max_tokens", "runtime"):
        if getattr(config, name) != type(config).model_fields[name].default:
            words += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
    return shlex.join(words)
