"""`HeldOutPairs`: loss and accuracy of a reward model on pairs of tasks that are not trained on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from hud.eval.results.intervals import clustered_interval, with_interval
from hud.train.monitoring.loss_metrics import HELD_OUT_ACCURACY
from hud.train.rollouts.seeds import seed_of
from hud.train.supervised.examples import TokenizedRuns, task_key
from hud.train.supervised.held_out_loss import HeldOutLoss
from hud.train.supervised.preferences import Pair, PairTerm, Preferences

if TYPE_CHECKING:
    from hud.train.learner import Learner
    from hud.train.monitoring.progress import Reporter
    from hud.train.supervised.config import SupervisedConfig


@dataclass(frozen=True)
class PairAccuracy:
    """Share of pairs whose better run has the higher reward, with its 95% interval over tasks: None for fewer than two."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @classmethod
    def of(cls, tasks: Sequence[Sequence[PairTerm]]) -> PairAccuracy:
        """Return the accuracy on the pairs of each task; a pair with equal rewards counts a half."""
        hits = [[(term.margin > 0) + (term.margin == 0) / 2 for term in task] for task in tasks]
        interval = clustered_interval(hits)
        low, high = (None, None) if interval is None else (interval.low, interval.high)
        flat = [hit for task in hits for hit in task]
        return cls(fmean(flat), low, high, len(flat))

    def __str__(self) -> str:
        return f"{with_interval(self.mean, self.low, self.high)} of {self.pairs:,} pairs"


class HeldOutPairs(HeldOutLoss):
    """Held-out pairs by task, and the steps at which they are measured; false without pairs."""

    def __init__(
        self,
        learner: Learner[SupervisedConfig],
        preferences: Preferences,
        tasks: Sequence[Sequence[Pair]],
        reporter: Reporter,
    ) -> None:
        super().__init__(learner, [], reporter)
        self._preferences, self._tasks = preferences, tasks
        self.accuracy: PairAccuracy | None = None
        """The newest one; None before the first."""

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def after(self, done: int) -> dict[str, float]:
        metrics = await super().after(done)
        if self.due(done) and self.accuracy is not None:
            metrics[HELD_OUT_ACCURACY] = self.accuracy.mean
        return metrics

    async def _measured(self, done: int) -> float:
        self._reporter.phase("held-out", done, 0)
        tasks = [await self._preferences.terms(pairs) for pairs in self._tasks]
        self.accuracy = PairAccuracy.of(tasks)
        loss = fmean(term.loss for terms in tasks for term in terms)
        self._reporter.note(
            f"held-out accuracy at step {done}: {self.accuracy}, loss {loss:.3f} a pair"
        )
        return loss


def split_pairs(
    pairs: Sequence[Pair], runs: TokenizedRuns, config: SupervisedConfig
) -> tuple[list[Pair], list[list[Pair]]]:
    """Return the pairs to train on, and by task those of the held-out share of tasks, chosen by the seed.

    At least one task of each kind where there are two.
    """
    by_task: dict[object, list[Pair]] = {}
    for pair in pairs:
        by_task.setdefault(task_key(runs.examples[pair.better]), []).append(pair)
    tasks = list(by_task.values())
    count = len(tasks)
    random.Random(seed_of("held-out pairs", config.seed)).shuffle(tasks)
    most = min(max(1, round(config.test_share * count)), count - 1) if config.test_share else 0
    return [pair for task in tasks[most:] for pair in task], tasks[:most]
