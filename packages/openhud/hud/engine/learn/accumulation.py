"""Counts of what was accumulated since the last optimizer step: the divisions by them wait for the step."""

from __future__ import annotations

from hud.engine.learn.pass_metrics import Measured
from hud.errors import ConflictError
from hud.learning.losses.config import Normalization


class Accumulation:
    """Counts of a step that is being accumulated, under one normalization."""

    def __init__(self) -> None:
        self.clear()

    @property
    def pending(self) -> bool:
        """True when something was accumulated since the last step."""
        return self._action_tokens > 0

    def clear(self) -> None:
        """Begin the next step."""
        self._action_tokens = 0
        self._sequences = 0.0
        self._normalization: Normalization | None = None

    def check(self, normalization: Normalization) -> None:
        """Raise `ConflictError` for another normalization than the step's."""
        if self._normalization not in (None, normalization):
            raise ConflictError(
                f"This step has accumulated with {self._normalization} so far and cannot add {normalization} to it. "
                "Use one normalization between two steps."
            )

    def add(self, measured: Measured, normalization: Normalization) -> None:
        """Add what one call measured."""
        self._action_tokens += measured.actions
        self._sequences += measured.sequences
        if measured.actions:
            self._normalization = normalization

    def divisor(self) -> float:
        """Return the number by which the step divides the gradient. Raises `ConflictError` if nothing was accumulated."""
        if not self.pending:
            raise ConflictError(
                "Nothing was accumulated since the last step, so there is nothing to apply. Every group of the "
                "batch may have been without spread; send a batch with some first."
            )
        if self._normalization == "token_mean":
            return float(self._action_tokens)
        if self._normalization in ("sequence_mean", "dr_grpo"):
            return self._sequences
        return 1.0


def not_finite(loss: float) -> ConflictError:
    """Return the error of a loss that is not finite, for which what was accumulated is dropped."""
    return ConflictError(
        f"The loss is {loss}; the accumulated gradient was discarded and the weights are unchanged. "
        "Look for extreme logprobs, advantages or weights."
    )
