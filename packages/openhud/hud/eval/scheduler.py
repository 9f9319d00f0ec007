"""Scheduling of rollouts: plan, order, concurrency and stop.

A fixed set of workers takes planned runs from one iterator, so that memory and time per run are independent of the number
of runs.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hud.environment.templates.task import Provider
from hud.errors import UsageError
from hud.eval.concurrency.admission import Admission
from hud.eval.concurrency.in_force import ConcurrencyWatch
from hud.eval.judging.group_judge import JudgedGroups
from hud.eval.rollouts import carry_out, check_limit
from hud.eval.run import Run
from hud.eval.snapshots.snapshots import Snapshots
from hud.eval.waits import Waits
from hud.foreign_code import withdraw_cancellation
from hud.trace import new_id

if TYPE_CHECKING:
    from hud.agents.agent import Agent
    from hud.environment import Task
    from hud.eval.job import Job
    from hud.eval.judging.group_judge import GroupJudge
    from hud.eval.snapshots.snapshot_folder import SnapshotFolder

MAX_CONCURRENT = 32
"""Default number of concurrent rollouts."""
_YOUNG_OBJECTS = 2_000
"""Objects that a collection of the youngest generation examines at most: as many as the processor's caches hold."""
_YOUNG_COLLECTIONS = 100
"""Collections of the youngest generation before the next one is examined."""
_MIDDLE_COLLECTIONS = 25
"""Collections of the middle generation before all objects are examined: one for each 5 million that are kept."""


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
    """A planned run."""

    task: Task
    attempt: int
    group_id: str


def plan(tasks: Iterable[Task], group: int) -> list[PlannedRun]:
    """Return `group` runs of each task, in order, with a group id for each task."""
    return plan_missing(tasks, group, ())


def plan_missing(
    tasks: Iterable[Task], group: int, finished: Iterable[Finished]
) -> list[PlannedRun]:
    """Return the runs missing in `finished` for `group` measured runs of each task.

    Runs without a reward (interrupted, or failed by environment, grader or infrastructure) are missing. New runs join the
    existing group. Raises `UsageError` for a `group` below 1.
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
    """A request to stop: the first starts no new runs, the second cancels all."""

    def __init__(self) -> None:
        self.stopping = False
        self.cancelled = False
        self._cancel: list[Callable[[], object]] = []

    def request(self) -> None:
        """Request a stop: first after the active runs have finished, then by cancelling them."""
        if not self.stopping:
            self.stopping = True
            return
        self.cancelled = True
        for cancel in self._cancel:
            cancel()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Call `cancel` at the second request, within the context."""
        self._cancel.append(cancel)
        try:
            yield
        finally:
            self._cancel.remove(cancel)

    @contextmanager
    def on_interrupt(self) -> Iterator[StopSignal]:
        """Handle Ctrl-C as a request, within the context."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.request)
        try:
            yield self
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def check_limits(
    max_concurrent: int | None, rollout_timeout: float | None, tool_timeout: float | None = None
) -> None:
    """Raise `UsageError` for invalid limits, before anything is recorded."""
    if tool_timeout is not None and not tool_timeout > 0:
        raise UsageError(f"tool_timeout must be positive, not {tool_timeout:g}.")
    if max_concurrent is not None and max_concurrent < 1:
        raise UsageError(f"max_concurrent must be at least 1, not {max_concurrent}.")
    check_limit(rollout_timeout)


async def run_planned(
    planned: Sequence[PlannedRun],
    agent: Agent,
    job: Job,
    provider: Provider | None,
    *,
    max_concurrent: int | None = None,
    rollout_timeout: float | None = None,
    stop: StopSignal | None = None,
    tool_timeout: float | None = None,
    on_run: Callable[[Run], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
    limit: asyncio.Semaphore | None = None,
    judge: GroupJudge | None = None,
    snapshots: SnapshotFolder | None = None,
) -> list[Run]:
    """Play the planned runs and return the finished ones, in the order of the plan.

    `judge` grades the runs of each group when its last one has ended. `on_run` is called with each finished run, and `on_wait` with the report of a wait (default: tool calls, in the log);
    `snapshots` keeps those of the runs; `limit` limits the total concurrency of several calls. Raises errors that stop the whole job: an unusable runtime, or a
    store that cannot be written.
    """
    stop = stop if stop is not None else StopSignal()
    ended: dict[int, Run] = {}
    queue = iter(enumerate(planned))
    room = limit if limit is not None else nullcontext()
    waits = Waits(job, on_wait)
    admission = Admission()
    groups = None if judge is None else JudgedGroups(judge, (item.group_id for item in planned))
    cancelling = asyncio.Event()

    async def work() -> None:
        for index, item in queue:
            async with room:
                await admission.admit(lambda: len(job.active), lambda: stop.stopping)
                if stop.stopping:
                    return
                run = Run(
                    task=item.task,
                    job_id=job.id,
                    group_id=item.group_id,
                    attempt=item.attempt,
                    recorder=job.recorder,
                )
                run.live.tool_timeout, run.live.cancels = tool_timeout, cancelling.is_set
                run.live.judged = groups is not None
                if snapshots is not None:
                    run.live.snapshots = Snapshots(snapshots.of(run.slug, run.attempt))
                job.active.append(run)
                try:
                    ended[index] = await carry_out(run, agent, provider, rollout_timeout)
                finally:
                    job.active.remove(run)
                if run.live.snapshots is not None and ended[index].measured:
                    await run.live.snapshots.store.keep(None)
            waits.ended()
            graded = [ended[index]] if groups is None else await groups.ended(ended[index])
            if on_run is not None:
                for run in graded:
                    on_run(run)
            # A rollout in this process may never yield; signals and recorders need the event loop.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if cancelling.is_set():
                    raise
                withdraw_cancellation()  # Of a run that has ended.

    width = min(max_concurrent or MAX_CONCURRENT, len(planned))
    if width:
        concurrency = ConcurrencyWatch(job, width, admission, on_wait)
        watching = [asyncio.create_task(watch) for watch in (waits.watch(), concurrency.watch())]
        cancelled = True
        try:
            with patient_collector():
                await _all(work, width, stop, cancelling)
            cancelled = stop.cancelled
        finally:
            for watch in watching:
                watch.cancel()
            concurrency.look()
            graded = [] if groups is None else await groups.end(cancelled=cancelled)
            if on_run is not None:
                for run in graded:
                    on_run(run)
    job.interrupted = job.interrupted or len(ended) < len(planned)
    return [ended[index] for index in sorted(ended)]


_collector_before: list[tuple[int, int, int]] = []


@contextmanager
def patient_collector() -> Iterator[None]:
    """Reduce the cost of garbage collection during a batch.

    A batch's objects are mostly kept (traces): examining them again after every 7,000 allocations took a third of the time.
    The youngest generation is still collected often, while its objects are in the processor's caches. Batches may overlap;
    the last one restores the original thresholds.
    """
    before = gc.get_threshold()
    _collector_before.append(before)
    if before[0] > 0:
        wanted = (_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
        gc.set_threshold(*map(max, before, wanted))
    try:
        yield
    finally:
        if len(_collector_before) == 1:
            gc.set_threshold(*_collector_before[0])
            _collector_before.clear()
        else:
            _collector_before.pop()


async def _all(
    work: Callable[[], Coroutine[None, None, None]],
    width: int,
    stop: StopSignal,
    cancelling: asyncio.Event,
) -> None:
    """Run `width` workers to their end; the second stop request, or an error, sets `cancelling` and cancels all."""
    workers = [asyncio.ensure_future(work()) for _ in range(width)]

    def cancel() -> None:
        cancelling.set()
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
