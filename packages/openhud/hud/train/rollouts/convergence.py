"""Convergence: detection of policies whose groups no longer, or never, have signal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import fmean
from typing import TYPE_CHECKING

from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.train.config import TrainConfig
    from hud.train.monitoring.progress import Reporter
    from hud.train.rollouts.batch import RolloutBatch

MOST_EMPTY_STEPS = 10
"""Consecutive steps without signal after which a run ends."""
CONVERGED_REWARD = 0.99
"""Minimum mean reward of these steps for convergence: the highest reward is 1."""


class Convergence:
    """Counter of steps without signal."""

    def __init__(
        self, config: TrainConfig, reporter: Reporter, advice: Callable[[], Awaitable[str]]
    ) -> None:
        """`advice`: an explanation for a policy whose runs all have reward 0, with the commands of a warm-up."""
        self.config, self.reporter, self._advise = config, reporter, advice
        self.reached = False
        """True after convergence."""
        self._rewards: list[float | None] = []
        """Mean rewards of the last consecutive steps without signal."""
        self._advice: str | None = None
        """Commands of a warm-up for a policy without reward; None before they are needed."""

    async def count(self, step: int, batch: RolloutBatch, *, signal: bool, learned: bool) -> None:
        """Count a step. At the first step without reward, report the commands of a warm-up.

        `learned`: the run has updated weights before. Otherwise raises `UsageError` after `MOST_EMPTY_STEPS` steps without
        signal, unless the policy had the highest reward in all of them.
        """
        self._rewards = [] if signal else [*self._rewards, batch.reward]
        hopeless = bool(self._rewards) and batch.earned_nothing
        if hopeless and self._advice is None:
            self._advice = await self._advise()
            self.reporter.note(
                f"All {len(batch.measured)} runs of step {step + 1} have reward 0. {self._advice}"
            )
        if len(self._rewards) >= MOST_EMPTY_STEPS:
            self._end(hopeless, learned)

    def _end(self, hopeless: bool, learned: bool) -> None:
        rewards = [reward for reward in self._rewards if reward is not None]
        in_a_row = f"{len(self._rewards)} steps in a row"
        if not rewards:
            raise UsageError(
                f"{in_a_row} no run was measured: every one failed. hud jobs shows why."
            )
        reward = fmean(rewards)
        if reward >= CONVERGED_REWARD or learned:
            self.reached = True
            converged = reward >= CONVERGED_REWARD
            self.reporter.note(
                f"{self.config.model} {'has converged' if converged else 'gives no signal any more'}: for {in_a_row} the "
                f"runs of every group earned the same, {reward:.3f} on average, so "
                + (
                    "there is nothing left to learn from these tasks."
                    if converged
                    else f"training ends. Earlier checkpoints: hud models checkpoints {self.config.model}"
                )
            )
            return
        why = (
            f"had only runs with reward 0. {self._advice}"
            if hopeless
            else "had no group with signal: the policy does every task equally well, or equally badly, so there is "
            "nothing to learn from. Use tasks that it solves sometimes, more runs for each (--group), or a warm-up "
            "(--from)."
        )
        raise UsageError(f"{in_a_row} {why}")
