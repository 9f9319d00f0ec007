"""What `hud eval` shows while it works: a live line on a terminal, one plain line for each run elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hud.cli.output import console, count, number, seconds

if TYPE_CHECKING:
    from hud.eval import Run, StopSignal


class Watch:
    """Hears of every run that ends, and says so."""

    def __init__(self, total: int, stop: StopSignal, *, verbose: int = 0) -> None:
        self.total = total
        self.stop = stop
        self.verbose = verbose
        self.done = 0
        self.rewards: list[float] = []
        self.out = console()

    def ended(self, run: Run) -> None:
        """Count a run, and show it."""
        self.done += 1
        if run.reward is not None:
            self.rewards.append(run.reward)
        self.show(run)

    def show(self, run: Run) -> None:
        """Print a line about a run that ended."""
        self.out.print(
            f"[{self.done}/{self.total}]  {describe(run, self.verbose)}  mean {self.mean}",
            markup=False,
        )

    @property
    def mean(self) -> str:
        """Mean reward of the runs so far."""
        return number(fmean(self.rewards) if self.rewards else None)


class LiveWatch(Watch):
    """A progress bar at the bottom, with the latest runs scrolling above it."""

    def __init__(self, total: int, stop: StopSignal, bar: Progress, verbose: int = 0) -> None:
        super().__init__(total, stop, verbose=verbose)
        self.bar = bar
        self.line = bar.add_task("", total=total, mean="–", note="")

    def show(self, run: Run) -> None:
        # All of a small evaluation scroll by; of a large one, those that failed.
        if self.total <= 200 or run.failed or self.verbose:
            self.bar.console.print(describe(run, self.verbose), markup=False)
        note = "  stopping: Ctrl-C again cancels what is in flight" if self.stop.stopping else ""
        self.bar.update(self.line, completed=self.done, mean=self.mean, note=note)


class Silence(Watch):
    """Shows nothing."""

    def show(self, run: Run) -> None:
        del run


@contextmanager
def progress(
    name: str, total: int, stop: StopSignal, *, quiet: bool, verbose: int
) -> Iterator[Watch]:
    """Show the progress of `total` runs, while inside."""
    screen = console()
    if quiet:
        yield Silence(total, stop)
        return
    if not screen.is_terminal:
        screen.print(f"{name}: {count(total, 'run')}", markup=False)
        yield Watch(total, stop, verbose=verbose)
        return
    columns = (
        TextColumn(name, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("mean reward {task.fields[mean]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=screen) as bar:
        yield LiveWatch(total, stop, bar, verbose)


def describe(run: Run, verbose: int = 0) -> str:
    """Say in one line how a run went."""
    reward = "  –  " if run.reward is None else f"{run.reward:.3f}"
    line = f"{reward}  {run.slug} #{run.attempt}  {seconds(run.seconds)}"
    if run.error is not None:
        line += f"  {run.failure_kind or 'cancelled'}: {run.error}"
    elif run.trace.stop_reason not in (None, "done"):
        line += f"  stopped: {run.trace.stop_reason}"
    if verbose:
        answer = " ".join((run.content or "").split())
        line += f"\n       {run.trace_id}  {answer[:200]}"
    return line
