"""`HeldOutLoss`: loss per token of runs that are not trained on, before, during and after a supervised training."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.learning.wire_types import TrajectoryPayload
from hud.train.learner import Learner
from hud.train.monitoring.loss_metrics import HELD_OUT_LOSS, INITIAL_LOSS
from hud.train.rollouts.seeds import seed_of
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.examples import TokenizedRuns

if TYPE_CHECKING:
    from hud.train.monitoring.progress import Reporter
    from hud.train.run_journal import TrainingRun


class HeldOutLoss:
    """Held-out runs of a training, and the steps at which their loss is measured; false without runs."""

    def __init__(
        self,
        learner: Learner[SupervisedConfig],
        runs: Sequence[TrajectoryPayload],
        reporter: Reporter,
    ) -> None:
        self._learner, self._runs, self._reporter = learner, runs, reporter
        self._initial: float | None = None

    def __bool__(self) -> bool:
        return bool(self._runs)

    async def begin(self, run: TrainingRun) -> None:
        """Measure what the run lacks at its step: the loss before training, or that of a step whose process was killed."""
        done = run.next_step
        if not self.due(done):
            return
        if done == 0:
            self._initial = await self._measured(0)
        elif run.history and HELD_OUT_LOSS not in run.history[-1]["metrics"]:
            metrics = {**run.history[-1]["metrics"], HELD_OUT_LOSS: await self._measured(done)}
            await run.report(done - 1, metrics, None)

    async def after(self, done: int) -> dict[str, float]:
        """Return the metrics of a step, measured if they are due."""
        metrics = {INITIAL_LOSS: self._initial} if self._initial is not None and done == 1 else {}
        if self.due(done):
            metrics[HELD_OUT_LOSS] = await self._measured(done)
        return metrics

    def due(self, done: int) -> bool:
        """Return whether the loss after so many steps is measured."""
        return bool(self) and self._learner.config.is_evaluated(done)

    async def _measured(self, done: int) -> float:
        self._reporter.phase("held-out", done, 0)
        loss = await self._learner.loss_of(self._runs)
        self._reporter.loss_measured(done, loss, len(self._runs))
        return loss


def split(runs: TokenizedRuns, config: SupervisedConfig) -> tuple[TokenizedRuns, TokenizedRuns]:
    """Return the runs to train on and the held-out share, chosen by the seed; at least one of each where there are two."""
    count = len(runs.examples)
    places = list(range(count))
    random.Random(seed_of("held-out loss", config.seed)).shuffle(places)
    most = min(max(1, round(config.test_share * count)), count - 1) if config.test_share else 0
    held_out = set(places[:most])
    return (
        runs.part([place for place in range(count) if place not in held_out]),
        runs.part(sorted(held_out)),
    )
