"""`Reporter`: the interface of a training's progress, for a command's panel or a test. The loop itself never prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hud.eval.results.held_out_scores import Score

Phase = Literal["examples", "rollouts", "update", "held-out"]


class Reporter:
    """Receiver of a training's progress, in order. Subclasses override methods; this class ignores everything."""

    def started(self, run_id: str, first_step: int, steps: int) -> None: ...

    def phase(self, phase: Phase, step: int, total: int) -> None:
        """Start a phase with `total` runs, 0 for none."""

    def run_ended(self, reward: float | None) -> None: ...

    def stepped(self, step: int, metrics: dict[str, float]) -> None: ...

    def scored(self, score: Score) -> None: ...

    def loss_measured(self, step: int, loss: float, runs: int) -> None:
        """Show the loss per token of `runs` held-out runs after so many steps."""

    def note(self, text: str) -> None:
        """Show a sentence."""

    def close(self) -> None:
        """The training has ended, or was stopped."""


def score_key(name: str) -> str:
    """Return the key of a held-out set's score in the log: `sheetbench-50` is `sheetbench50_score`."""
    words = re.sub(r"-(?=[0-9])", "", name.lower())
    return f"{re.sub(r'[^a-z0-9]+', '_', words).strip('_') or 'held_out'}_score"
