"""How many CPU threads torch works with: sampling and training of small models differ.

A decode step of a small model is many tiny operations, and handing each to a second thread costs more than it
brings: measured on two cores with 0.8 million parameters, 18,600 tokens/s on one thread, 10,000 on two. A packed
training pass is few large ones: 13,500 tokens/s on one, 22,200 on two. Whoever sets OMP_NUM_THREADS decides alone, and
HUD_SAMPLERS how many processes sample a small model.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

from hud import settings

SMALL_PARAMETERS = 20_000_000
"""Up to this many parameters a decoder is sampled on one thread, in several processes. Above, each process would read more
weights than it computes with: one process with all threads is better."""

MOST_PROCESSES = 8
"""Most processes that sample a small model where nobody says how many: each takes some 200 MB, and sequences are few."""

MOST_PASSES = 8
"""Most training passes of a small model at the same time: each holds a gradient of its own, of up to 80 MB."""

TURN_SECONDS = 0.0005
"""How long a thread may hold the interpreter's lock where training passes want it."""

T = TypeVar("T")

_most = torch.get_num_threads()
_on_all = ThreadPoolExecutor(1, "hud-compute")
_here = threading.local()
_under_way: list[None] = []
"""As many as there are batches of passes that are computed now."""


def use_at_most(count: int) -> None:
    """Leave the machine's other cores to others: from here on no work asks for more than this many."""
    global _most
    _most = count


def for_sampling(parameters: int) -> None:
    """Set the threads of this thread's next operations for decode steps."""
    if parameters <= SMALL_PARAMETERS:
        _use(1)
    else:
        _use(_most)


def sampling_processes(parameters: int) -> int:
    """Return how many processes, of one thread each, a decoder of that many parameters is best sampled by."""
    if parameters > SMALL_PARAMETERS:
        return 1
    wanted = settings.load().samplers
    if wanted is not None:
        return wanted
    return 1 if "OMP_NUM_THREADS" in os.environ else min(_most, MOST_PROCESSES)


def for_training() -> None:
    """Set the threads of this thread's next operations for training passes."""
    _use(_most)


def on_all_cores(work: Callable[[], T]) -> T:
    """Return what `work` returns, which the one thread of this process that computes with several others does.

    OpenMP keeps helpers for each thread that ever wanted any. Once there are more threads than cores, they go to sleep after
    every operation: on two cores, a pass of 2,200 tokens through 3.3 million parameters then takes 0.56 s instead of 0.37 s.
    Settings that torch keeps for each thread, such as `no_grad`, are for `work` itself to make.
    """
    if "OMP_NUM_THREADS" in os.environ or getattr(_here, "on_all", False):
        return work()
    return _on_all.submit(_with_helpers, work).result()


def _with_helpers(work: Callable[[], T]) -> T:
    _here.on_all = True
    _use(_most)
    try:
        return work()
    finally:
        _use(1)  # New threads begin with what was set last.


def passes_at_once(parameters: int) -> int:
    """Return how many training passes, of one thread each, are best computed at the same time."""
    if parameters > SMALL_PARAMETERS or "OMP_NUM_THREADS" in os.environ:
        return 1
    return min(_most, MOST_PASSES)


def in_parallel(works: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Yield what each of `works` returns, in their order; threads that use one core each compute them.

    Threads that have nothing to say to one another lose nothing where others want the cores too. Helpers of OpenMP wait for
    each other in every operation: beside one busy process, a pass of 0.3 s then takes seconds.
    """
    pool = _beside(min(_most, MOST_PASSES))
    futures = deque(pool.submit(work) for work in works)
    _under_way.append(None)
    try:
        while futures:
            yield futures.popleft().result()  # No longer held here: it may be large.
    finally:
        _under_way.pop()
        # Whoever stops early may change the weights next.
        for future in futures:
            future.cancel()
        wait(futures)


def passes_under_way() -> bool:
    """Return True while training passes are computed side by side."""
    return bool(_under_way)


@cache
def _beside(count: int) -> ThreadPoolExecutor:
    # They ask for the interpreter's lock after each operation, which the loop that plays rollouts holds for as long as it may.
    sys.setswitchinterval(min(sys.getswitchinterval(), TURN_SECONDS))
    return ThreadPoolExecutor(count, "hud-pass", initializer=_use, initargs=(1,))


def _use(count: int) -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count)


# Helpers are for those who ask for them here; anything else is done by the thread that needs it.
_use(1)
