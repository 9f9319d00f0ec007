"""`Budget`: limits of turns and tokens for a run together with its subagents.

A subagent's budget is nested in its caller's: its use counts for all enclosing budgets, and each limit applies. Works on
counts; independent of runs and models.
"""

from __future__ import annotations

from collections.abc import Iterator

from hud.trace import StopReason


class Budget:
    """Remaining turns and tokens; None: no limit."""

    def __init__(self, within: Budget | None = None) -> None:
        self.within = within
        self.steps_left: int | None = None
        self.tokens_left: int | None = None

    def limit(self, *, steps: int | None, tokens: int | None) -> None:
        """Set the limits of this run and its subagents: `steps` model calls, `tokens` sampled."""
        self.steps_left, self.tokens_left = steps, tokens

    @property
    def spent(self) -> StopReason | None:
        """Reason why no further turn is allowed; None while one is."""
        for budget in self._around():
            if budget.steps_left is not None and budget.steps_left <= 0:
                return "max_steps"
            if budget.tokens_left is not None and budget.tokens_left <= 0:
                return "length"
        return None

    def take_step(self) -> StopReason | None:
        """Count a turn, before the model call; returns the reason if none is left."""
        spent = self.spent
        if spent is None:
            for budget in self._around():
                if budget.steps_left is not None:
                    budget.steps_left -= 1
        return spent

    def most_tokens(self, wanted: int | None) -> int | None:
        """Return how many of `wanted` tokens the next turn may sample; None: no limit."""
        left = [budget.tokens_left for budget in self._around() if budget.tokens_left is not None]
        limits = left if wanted is None else [wanted, *left]
        return max(1, min(limits)) if limits else None

    def take_tokens(self, drawn: int) -> None:
        """Count a turn's sampled tokens."""
        for budget in self._around():
            if budget.tokens_left is not None:
                budget.tokens_left -= drawn

    def _around(self) -> Iterator[Budget]:
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget.within
