"""Continuation of training runs by `hud train`: its options, its exit codes, and the end of a run's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from hud.cli.main import INTERRUPTED
from hud.cli.output import console

if TYPE_CHECKING:
    from hud.train.loop import TrainReport
    from hud.train.supervised.supervised_run import SupervisedReport

PAUSED = 1
"""Exit code of a run that the guard paused."""


class Continuation(TypedDict):
    """Options of resuming an unfinished run."""

    fresh: bool
    override_guard: bool


def print_files_and_next(report: TrainReport | SupervisedReport, following: str) -> None:
    """Print the files of a run, and the next command: `following` after a finished one."""
    out = console()
    out.print(f"  metrics  {report.metrics_file}", markup=False)
    if report.plot is not None:
        out.print(f"  curves   {report.plot}", markup=False)
    if report.paused is not None:
        out.print(report.paused.advice(report.model), markup=False, soft_wrap=True)
    elif report.finished:
        out.print(following, markup=False)
    else:
        out.print("Give the same command again to go on.")


def exit_code(*, stopping: bool, paused: bool) -> int:
    """Return the exit code of a training command."""
    return INTERRUPTED if stopping else PAUSED if paused else 0
