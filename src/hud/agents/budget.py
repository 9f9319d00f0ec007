"""`Budget`: what a run and its subagents may spend together.

A subagent's budget lies within its caller's: what it spends is spent of all budgets around it, and none of them
can be passed. Knows counts; knows neither runs nor models.
"""

from __future__ import annotations

from collections.abc import Iterator

from hud.trace import StopReason


class Budget:
    """Turns and tokens that are left; None is no limit."""

    def __init__(self, within: Budget | None = None) -> None:
        self.within = within
        self.steps_left: int | None = None
        self.tokens_left: int | None = None

    def limit(self, *, steps: int | None, tokens: int | None) -> None:
        """Set what this run and its subagents may still take: `steps` model calls, `tokens` that are drawn."""
        self.steps_left, self.tokens_left = steps, tokens

    @property
    def spent(self) -> StopReason | None:
        """Reason why no further turn may be taken; None while one may."""
        for one in self._around():
            if one.steps_left is not None and one.steps_left <= 0:
                return "max_steps"
            if one.tokens_left is not None and one.tokens_left <= 0:
                return "length"
        return None

    def take_step(self) -> StopReason | None:
        """Take a turn, before the model is asked; returns why there is none left."""
        spent = self.spent
        if spent is None:
            for one in self._around():
                if one.steps_left is not None:
                    one.steps_left -= 1
        return spent

    def most_tokens(self, wanted: int | None) -> int | None:
        """Return how many of `wanted` tokens the next turn may draw; None: without a limit."""
        left = [one.tokens_left for one in self._around() if one.tokens_left is not None]
        limits = left if wanted is None else [wanted, *left]
        return max(1, min(limits)) if limits else None

    def take_tokens(self, drawn: int) -> None:
        """Count tokens that a turn drew."""
        for one in self._around():
            if one.tokens_left is not None:
                one.tokens_left -= drawn

    def _around(self) -> Iterator[Budget]:
        one: Budget | None = self
        while one is not None:
            yield one
            one = one.within
