"""What `hud eval` shows while it works: a live line on a terminal, one plain line for each run elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hud.cli.output import console, count, number, seconds
from hud.eval import StopSignal

if TYPE_CHECKING:
    from hud.eval import Run


LEAVING_SECONDS = 3.0


class SpokenStop(StopSignal):
    """A stop signal that answers the first Ctrl-C at once: grading what is in flight may take a while."""

    answer: Callable[[str], None] | None = None
    left = False
    """True when the platform was left to play on alone."""

    def request(self) -> None:
        first = not self.stopping
        super().request()
        if first and self.answer is not None:
            self.answer("Finishing what is in flight; Ctrl-C again cancels it.")


class LeavingStop(SpokenStop):
    """Ctrl-C while the platform plays: the first leaves it to that, a second soon after it cancels the rollouts."""

    def __init__(self, leave: Callable[[], None]) -> None:
        super().__init__()
        self._leave = leave

    def request(self) -> None:
        first = not self.stopping
        StopSignal.request(self)
        if first:
            if self.answer is not None:
                self.answer(
                    f"The platform plays on without this command. Ctrl-C again, within {LEAVING_SECONDS:g} s, "
                    "cancels the rollouts instead."
                )
            asyncio.get_running_loop().call_later(LEAVING_SECONDS, self._go)

    def _go(self) -> None:
        if not self.cancelled:
            self.left = True
            self._leave()
            StopSignal.request(self)


class Watch:
    """Hears of every run that ends, and says so."""

    def __init__(self, total: int, *, verbose: int = 0) -> None:
        self.total = total
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

    def say(self, text: str) -> None:
        """Print a line about the whole."""
        self.out.print(text, markup=False)

    @property
    def mean(self) -> str:
        """Mean reward of the runs so far."""
        return number(fmean(self.rewards) if self.rewards else None)


class LiveWatch(Watch):
    """A progress bar at the bottom, with the latest runs scrolling above it."""

    def __init__(self, total: int, bar: Progress, verbose: int = 0) -> None:
        super().__init__(total, verbose=verbose)
        self.bar = bar
        self.out = bar.console
        self.line = bar.add_task("", total=total, mean="–")

    def show(self, run: Run) -> None:
        # All of a small evaluation scroll by; of a large one, those that failed.
        if self.total <= 200 or run.failed or self.verbose:
            self.out.print(describe(run, self.verbose), markup=False)
        self.bar.update(self.line, completed=self.done, mean=self.mean)


class Silence(Watch):
    """Shows nothing."""

    def show(self, run: Run) -> None:
        del run

    def say(self, text: str) -> None:
        del text


@contextmanager
def progress(
    name: str, total: int, stop: SpokenStop, *, quiet: bool, verbose: int, plain: bool = False
) -> Iterator[Watch]:
    """Show the progress of `total` runs, and answer requests to stop, while inside.

    `plain` leaves the live line away: somebody else writes on the terminal.
    """
    with _watch(name, total, quiet=quiet, verbose=verbose, plain=plain) as watch:
        stop.answer = watch.say
        yield watch


@contextmanager
def _watch(name: str, total: int, *, quiet: bool, verbose: int, plain: bool) -> Iterator[Watch]:
    screen = console()
    if quiet:
        yield Silence(total)
        return
    if plain or not screen.is_terminal:
        screen.print(f"{name}: {count(total, 'run')}", markup=False)
        yield Watch(total, verbose=verbose)
        return
    columns = (
        TextColumn(name, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("mean reward {task.fields[mean]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen) as bar:
        yield LiveWatch(total, bar, verbose)


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
