"""Progress of `hud eval`: a live line on a terminal, one plain line for each tenth of the runs elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hud.cli.output import (
    Column,
    about,
    console,
    count,
    echo,
    fitted,
    header,
    number,
    rest,
    row,
    seconds,
    wrapped,
)
from hud.environment.templates.task import task_label
from hud.eval import StopSignal
from hud.eval.results.failure_causes import cause_of

if TYPE_CHECKING:
    from hud.eval import Job, Run


LEAVING_SECONDS = 3.0


class SpokenStop(StopSignal):
    """A stop signal whose first request cancels the active runs; a second one ends the process without waiting for them."""

    answer: Callable[[str], None] | None = None
    left = False
    """True if the platform continues without this command."""

    def request(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        if self.answer is not None:
            self.answer("Stopping; active runs are cancelled, and what has ended is recorded.")
        super().request()
        super().request()


class LeavingStop(SpokenStop):
    """Handler of Ctrl-C during remote rollouts: the first leaves them to the platform, a second soon after cancels them."""

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


ROWS = 10
"""Rows that are printed without a terminal, evenly spaced over the runs."""


class Watch:
    """Progress of an evaluation, with a printed row for every finished run, or for every tenth of them."""

    def __init__(self, total: int, *, verbose: int = 0, every_run: bool = True) -> None:
        self.total = total
        self.every_run = every_run or bool(verbose)
        self.verbose = verbose
        self.done = 0
        self.rewards: list[float] = []
        self.out = console()
        self._began = monotonic()
        self._causes: set[tuple[str, str]] = set()
        self._columns = [
            Column("run", 2 * len(str(total)) + 1),
            Column("reward", 6),
            Column("mean", 6),
            Column("time", 7),
            Column("left", 6),
        ]

    def begin(self, name: str) -> None:
        """Print a description of the evaluation, and the header."""
        self.out.print(f"{name}: {count(self.total, 'run')}", markup=False)
        if self.total:
            self.out.print(header([*self._columns, Column("task", 0, right=False)]))

    def ended(self, run: Run) -> None:
        """Count a run, and show it."""
        self.done += 1
        if run.reward is not None:
            self.rewards.append(run.reward)
        self.show(run)

    def show(self, run: Run) -> None:
        """Print a row for a finished run, and below it the first failure of each cause."""
        if self.every_run or self._is_due():
            self._row(run)
        for line in self._below(run):
            self.out.print(line, markup=False)

    def _is_due(self) -> bool:
        """Return True if the last run completes a tenth of all."""
        return self.done * ROWS // self.total > (self.done - 1) * ROWS // self.total

    def _row(self, run: Run) -> None:
        numbers = row(
            self._columns,
            [
                f"{self.done}/{self.total}",
                number(run.reward),
                self.mean,
                seconds(run.seconds),
                about(self.left),
            ],
        )
        outcome = f" #{run.attempt}{_outcome(run)}"
        room = rest(self._columns) - len(outcome)
        label = task_label(run.slug, run.task.id, run.task.args, run.task.equal_args, room)
        self.out.print(f"{numbers}  {fitted(label, room)}{outcome}", markup=False)

    def say(self, text: str) -> None:
        """Print a report; on standard error where the progress is not shown."""
        if self.out.quiet:
            echo(text, err=True)
        else:
            self.out.print(text, markup=False)

    @property
    def mean(self) -> str:
        """Mean reward of the runs so far."""
        return number(fmean(self.rewards) if self.rewards else None)

    @property
    def left(self) -> float | None:
        """Estimated seconds to the end, by the finished runs; None at the end."""
        elapsed = monotonic() - self._began
        return elapsed / self.done * (self.total - self.done) if self.done < self.total else None

    def _below(self, run: Run) -> list[str]:
        lines: list[str] = []
        if run.error is not None:
            cause = (run.failure_kind or "cancelled", cause_of(run.error))
            if cause not in self._causes or self.verbose:
                self._causes.add(cause)
                lines += wrapped(f"{cause[0]}: {run.error}", 4)
        if self.verbose:
            lines += wrapped(f"{run.trace_id}  {(run.content or '')[:200]}", 4)
        return lines


class LiveWatch(Watch):
    """A progress bar at the bottom, with the latest runs scrolling above it."""

    def __init__(self, job: Job, total: int, bar: Progress, verbose: int = 0) -> None:
        super().__init__(total, verbose=verbose)
        self.job = job
        self.bar = bar
        self.out = bar.console
        self.line = bar.add_task("", total=total, mean="–", at_once="")

    def show(self, run: Run) -> None:
        # All runs of a small evaluation are printed; of a large one, failures.
        if self.total <= 200 or run.failed or self.verbose:
            super().show(run)
        self.update()

    def say(self, text: str) -> None:
        super().say(text)
        self.update()

    def update(self) -> None:
        """Update the progress line."""
        at_once = at_once_text(self.job.concurrency)
        self.bar.update(self.line, completed=self.done, mean=self.mean, at_once=at_once)


def at_once_text(concurrency: Mapping[str, Any] | None) -> str:
    """Return the numbers in force for the progress line; "" where only the user's limit is."""
    if concurrency is None:
        return ""
    limits = [str(count) for count in concurrency["requests"].values()]
    if concurrency["held_by"] == "memory":
        limits.append(f"{concurrency['rollouts']} for lack of memory")
    return f"{', '.join(limits)} at once" if limits else ""


@contextmanager
def progress(
    job: Job, total: int, stop: SpokenStop, *, quiet: bool, verbose: int, plain: bool = False
) -> Iterator[Watch]:
    """Show the progress of `total` runs, and handle stop requests, within the context.

    `plain` omits the live line, for other output on the terminal.
    """
    with _watch(job, total, quiet=quiet, verbose=verbose, plain=plain) as watch:
        stop.answer = watch.say
        watch.begin(job.name)
        yield watch


@contextmanager
def _watch(job: Job, total: int, *, quiet: bool, verbose: int, plain: bool) -> Iterator[Watch]:
    screen = console()
    if quiet:
        watch = Watch(total)
        watch.out.quiet = True
        yield watch
        return
    if plain or not screen.is_terminal:
        yield Watch(total, verbose=verbose, every_run=plain)
        return
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("mean reward {task.fields[mean]}"),
        TextColumn("{task.fields[at_once]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen) as bar:
        yield LiveWatch(job, total, bar, verbose)


def _outcome(run: Run) -> str:
    """Return how a run ended; "" for a regular end."""
    if run.error is not None:
        return "  cancelled" if run.failure_kind is None else f"  {run.failure_kind} failed"
    if run.trace.stop_reason not in (None, "done"):
        return f"  stopped: {run.trace.stop_reason}"
    return ""
