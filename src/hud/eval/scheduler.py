"""Many rollouts at once: what to run, in which order, how many together, and how to stop.

A fixed set of workers takes planned runs from one iterator, so that a job of a million runs costs no more
memory or time for each than a job of ten.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hud.environment.templates.task import Player, Provider
from hud.errors import UsageError
from hud.eval.rollouts import carry_out, check_limit, prepare
from hud.eval.run import Run
from hud.trace import new_id

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.job import Job

MAX_CONCURRENT = 32
"""Default number of concurrent rollouts."""
_COLLECT_AFTER = 50_000


class Finished(Protocol):
    """A finished run, for resuming: a `Run`, or a `RunSummary` from the store."""

    @property
    def slug(self) -> str: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def attempt(self) -> int: ...
    @property
    def reward(self) -> float | None: ...


@dataclass(frozen=True)
class PlannedRun:
    """One run to do."""

    task: Task
    attempt: int
    group_id: str


def plan(tasks: Iterable[Task], group: int) -> list[PlannedRun]:
    """Return `group` runs of each task, in order, each task's under one group id."""
    return plan_missing(tasks, group, ())


def plan_missing(
    tasks: Iterable[Task], group: int, finished: Iterable[Finished]
) -> list[PlannedRun]:
    """Return the runs that are missing from `finished` to give each task `group` measured runs.

    Runs without a reward (interrupted, or broken by environment, grader or machinery) are missing. What is
    run now joins the group that is there already. Raises `UsageError` for a `group` below 1.
    """
    if group < 1:
        raise UsageError(f"group must be at least 1, not {group}.")
    measured: dict[str, list[Finished]] = {}
    for run in finished:
        if run.reward is not None:
            measured.setdefault(run.slug, []).append(run)
    planned: list[PlannedRun] = []
    for task in tasks:
        there = measured.get(task.slug or task.id, [])
        group_id = next((run.group_id for run in there if run.group_id), None) or new_id()
        taken = {run.attempt for run in there}
        free = [attempt for attempt in range(group) if attempt not in taken]
        planned += [
            PlannedRun(task, attempt, group_id) for attempt in free[: max(0, group - len(there))]
        ]
    return planned


class StopSignal:
    """A request to stop: the first time no new run is started, the second time all are cancelled."""

    def __init__(self) -> None:
        self.stopping = False
        self.cancelled = False
        self._cancel: list[Callable[[], object]] = []

    def request(self) -> None:
        """Ask once to finish what is in flight; ask again to cancel it."""
        if not self.stopping:
            self.stopping = True
            return
        self.cancelled = True
        for cancel in self._cancel:
            cancel()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Call `cancel` at the second request, while inside."""
        self._cancel.append(cancel)
        try:
            yield
        finally:
            self._cancel.remove(cancel)

    @contextmanager
    def on_interrupt(self) -> Iterator[StopSignal]:
        """Hear Ctrl-C as requests, while inside."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.request)
        try:
            yield self
        finally:
            loop.remove_signal_handler(signal.SIGINT)


async def make_ready(
    agent: Player, max_concurrent: int | None, rollout_timeout: float | None
) -> None:
    """Raise `UsageError` for limits that make no sense, and let the agent get ready: before anything is on record."""
    if max_concurrent is not None and max_concurrent < 1:
        raise UsageError(f"max_concurrent must be at least 1, not {max_concurrent}.")
    check_limit(rollout_timeout)
    await prepare(agent)


async def run_planned(
    planned: Sequence[PlannedRun],
    agent: Player,
    job: Job,
    provider: Provider,
    *,
    max_concurrent: int | None = None,
    rollout_timeout: float | None = None,
    stop: StopSignal | None = None,
    on_run: Callable[[Run], None] | None = None,
    limit: asyncio.Semaphore | None = None,
) -> list[Run]:
    """Do the planned runs and return those that ended, in the order of the plan.

    `on_run` is called with each run as it ends; `limit` bounds the runs of several calls together. Raises what stops the whole job: the runtime cannot be
    used, or the store cannot be written.
    """
    stop = stop if stop is not None else StopSignal()
    ended: dict[int, Run] = {}
    queue = iter(enumerate(planned))
    room = limit if limit is not None else nullcontext()

    async def work() -> None:
        for index, item in queue:
            async with room:
                if stop.stopping:
                    return
                run = Run(
                    task=item.task,
                    job_id=job.id,
                    group_id=item.group_id,
                    attempt=item.attempt,
                    recorder=job.recorder,
                )
                run = await carry_out(run, agent, provider, rollout_timeout)
            ended[index] = run
            if on_run is not None:
                on_run(run)
            # A rollout in this process may never wait; signals and recorders need their turn.
            await asyncio.sleep(0)

    width = min(max_concurrent or MAX_CONCURRENT, len(planned))
    if width:
        with _patient_collector():
            await _all(work, width, stop)
    job.interrupted = job.interrupted or len(ended) < len(planned)
    return [ended[index] for index in sorted(ended)]


_collector_before: list[tuple[int, int, int]] = []


@contextmanager
def _patient_collector() -> Iterator[None]:
    """Collect garbage less often while a batch runs.

    What a batch makes, it keeps: traces. Looking through them after every 700 allocations took a third of
    its time. Batches may overlap; the last one out restores what the first one found.
    """
    before = gc.get_threshold()
    _collector_before.append(before)
    if 0 < before[0] < _COLLECT_AFTER:
        gc.set_threshold(_COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        if len(_collector_before) == 1:
            gc.set_threshold(*_collector_before[0])
            _collector_before.clear()
        else:
            _collector_before.pop()


async def _all(
    work: Callable[[], Coroutine[None, None, None]], width: int, stop: StopSignal
) -> None:
    """Run `width` workers to their end; the second stop request cancels all, and so does an error."""
    workers = [asyncio.ensure_future(work()) for _ in range(width)]

    def cancel() -> None:
        for worker in workers:
            worker.cancel()

    with stop.cancelling(cancel):
        try:
            await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            cancel()
            outcomes = await asyncio.gather(*workers, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
