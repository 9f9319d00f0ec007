"""Progress of `Taskset.run` in a notebook: one line, which is written anew."""

from __future__ import annotations

import sys
from statistics import fmean
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.eval.run import Run


class NotebookProgress:
    """Counts finished runs, and shows their number, mean reward and time."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.rewards: list[float] = []
        self._began = monotonic()

    def ended(self, run: Run) -> None:
        """Count a run, and show the line."""
        self.done += 1
        if run.reward is not None:
            self.rewards.append(run.reward)
        mean = f"{fmean(self.rewards):.3f}" if self.rewards else "–"
        seconds = monotonic() - self._began
        line = f"{self.done:,}/{self.total:,} runs  mean reward {mean}  {seconds:.0f} s"
        end = "\n" if self.done == self.total else ""
        # A carriage return replaces the line in every front end of a kernel.
        print(f"\r{line:<60}", end=end, flush=True)


def notebook_progress(total: int) -> NotebookProgress | None:
    """Return the progress of `total` runs in a notebook; None elsewhere."""
    return NotebookProgress(total) if "ipykernel" in sys.modules else None
