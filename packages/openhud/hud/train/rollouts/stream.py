"""The stream of groups for asynchronous training: groups are played during updates on earlier ones.

With B groups per step and `version` completed steps, at most (version + max_lag + 1) B groups are started (as in AReaL,
arXiv 2505.24298), without dropped ones: a stream that is faster than the trainer waits. `group_order` selects the next
group, and when to start one; `docs/scaling.md` describes asynchronous sampling. Works on groups, rewards and policy lag;
independent of weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from hud.eval.job import Job
from hud.eval.run import Run
from hud.trace import AgentStep
from hud.train.rollouts.batch import RolloutBatch
from hud.train.rollouts.curriculum import Curriculum
from hud.train.rollouts.group_order import begins_another, next_group
from hud.train.rollouts.sampling import Models, Rollouts

if TYPE_CHECKING:
    from hud.environment import Task


@dataclass(frozen=True)
class _Played:
    """A finished group."""

    runs: list[Run]
    version: int
    """Completed steps when its oldest token was sampled."""


class RolloutStream:
    """The groups of a training run, played ahead, from `start` to `close`."""

    def __init__(
        self,
        rollouts: Rollouts,
        models: Models,
        curriculum: Curriculum,
        job: Job,
        first_step: int,
    ) -> None:
        """`models` must use the head's weights at the time of each request."""
        self.rollouts, self.config = rollouts, rollouts.config
        self.models, self.curriculum, self.job = models, curriculum, job
        self.version = first_step
        """Completed steps."""
        self._first = first_step
        self._begun = 0
        self._left_out = 0
        self._versions: dict[str | None, int] = {}
        self._ended: dict[int, _Played] = {}
        """Finished groups that wait for the trainer, by their number in order of start."""
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._left: dict[int, int] = {}
        """Unfinished runs of each active group."""
        self._taken = 0
        """Groups taken by the current step."""
        self._failed: BaseException | None = None
        self._closed = False
        self._heard = asyncio.Event()
        """Event: set when a group has finished."""
        self._lags: list[int] = []
        """Policy lag of the groups taken last, by their oldest token."""
        self._limit = asyncio.Semaphore(self.config.max_concurrent)
        self._places = self._tasks_from(first_step)

    def start(self, checkpoint: str | None) -> None:
        """Start playing; `checkpoint` is the current head."""
        self._versions[checkpoint] = self.version
        self._admit()

    def advance(self, checkpoint: str | None) -> None:
        """Advance by a completed step; `checkpoint` is the new head."""
        self.version += 1
        self._versions[checkpoint] = self.version
        self._taken = 0
        self._admit()

    async def groups(self, batch: RolloutBatch) -> AsyncIterator[list[list[Run]]]:
        """Play the next step into `batch`, and yield its groups with signal as they finish, available ones together.

        Yields fewer if too many consecutive groups had no signal; after a stop the batch is incomplete. Raises errors that
        end a job: an unusable runtime, or a store that cannot be written.
        """
        config, reporter = self.config, self.rollouts.reporter
        yielded = 0
        self._lags, self._taken = [], 0
        most = (1 + config.dynamic_sampling) * config.tasks_per_step
        reporter.phase("rollouts", self.version, config.tasks_per_step * config.group)
        while len(batch.groups) < config.tasks_per_step and batch.drawn < most:
            if len(batch.groups) > yielded and self._following() is None:
                new, yielded = batch.groups[yielded:], len(batch.groups)
                yield new
            played = await self._next()
            if played is None:
                return
            self._add(played, batch)
        batch.replaced = max(0, batch.drawn - config.tasks_per_step)
        batch.complete = not self.rollouts.stop.stopping
        if batch.complete:
            reporter.phase("update", self.version, 0)
            if batch.groups[yielded:]:
                yield batch.groups[yielded:]

    async def close(self) -> None:
        """Stop playing. After a stop request active rollouts finish first; otherwise they are cancelled."""
        self._closed = True
        if not self.rollouts.stop.stopping:
            for group_task in self._playing.values():
                group_task.cancel()
        while self._playing:
            await asyncio.wait(self._playing.values())

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step's groups."""
        metrics = {"groups_waiting:mean": float(len(self._ended))}
        if self._lags:
            metrics["group_lag:mean"] = fmean(self._lags)
            metrics["group_lag:max"] = float(max(self._lags))
        return metrics

    def _tasks_from(self, first_step: int) -> Iterator[Task]:
        step = first_step
        while True:
            drawn = self.curriculum.draw(step)
            for _ in range(self.config.tasks_per_step):
                yield next(drawn)
            step += 1

    def _admit(self) -> None:
        """Start all allowed groups."""
        ahead = min(self.version + self.config.max_lag + 1, self.config.steps) - self._first
        most = ahead * self.config.tasks_per_step + self._left_out
        ending = self._closed or self._failed is not None or self.rollouts.stop.stopping
        while self._begun < most and self._room() and not ending:
            number = self._begun
            self._begun += 1
            self._left[number] = self.config.group
            playing = asyncio.create_task(self._play(next(self._places), number))
            self._playing[number] = playing
            playing.add_done_callback(partial(self._over, number))

    def _room(self) -> bool:
        config = self.config
        # Their last run has finished, and its environment is closing.
        over = {number for number, left in self._left.items() if not left}
        return begins_another(
            self._ended.keys() | over,
            self._playing.keys() - over,
            taken=self._taken,
            per_step=config.tasks_per_step,
            group=config.group,
            under_way=sum(self._left.values()),
            at_once=config.max_concurrent,
        )

    async def _play(self, task: Task, number: int) -> None:
        def heard(_run: Run) -> None:
            self._left[number] -= 1
            self._admit()

        place = ("stream", self._first, number)
        # The step that will use it, if groups are taken in order.
        step = self._first + number // self.config.tasks_per_step
        runs = await self.rollouts.play_group(
            self.models, task, place, self.job, self._limit, heard, step=step
        )
        versions = [self._version_of(run) for run in runs]
        self._ended[number] = _Played(runs, min(versions, default=self.version))

    def _over(self, number: int, playing: asyncio.Task[None]) -> None:
        del self._playing[number], self._left[number]
        if not playing.cancelled():
            self._failed = self._failed or playing.exception()
        self._admit()
        self._heard.set()

    async def _next(self) -> _Played | None:
        """Return the next group for the current step; None after a stop request."""
        while not self.rollouts.stop.stopping:
            if self._failed is not None:
                raise self._failed
            number = self._following()
            if number is not None:
                return self._ended.pop(number)
            self._heard.clear()
            # A stop request does not set the stream's event: poll every half second.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._heard.wait(), 0.5)
        return None

    def _following(self) -> int | None:
        """Return the number of the current step's next group; None: wait."""
        per_step = self.config.tasks_per_step
        return next_group(self._ended, self._playing, taken=self._taken, per_step=per_step)

    def _add(self, played: _Played, batch: RolloutBatch) -> None:
        before = len(batch.groups)
        batch.add(played.runs, self.config)
        too_old = self.version - played.version > self.config.max_lag
        if len(batch.groups) > before and too_old and self.config.stale == "drop":
            batch.groups.pop()
            batch.stale += 1
        self._taken = len(batch.groups)
        if len(batch.groups) == before:
            self._left_out += 1
        else:
            self._lags.append(self.version - played.version)
        self._admit()

    def _version_of(self, run: Run) -> int:
        """Return the number of completed steps when the run's first token was sampled."""
        # An unknown checkpoint belongs to a step that is just completing.
        drawn = [
            self._versions.get(step.sample.checkpoint, self.version)
            for step in run.trace.steps
            if isinstance(step, AgentStep) and step.sample is not None
        ]
        return min(drawn, default=self.version)
