"""CPU threads of sampling and training, which differ for small models.

A decode step of a small model is many tiny operations, for which a second thread costs more than it gains: measured on two
cores with 0.8 million parameters, 18,600 tokens/s on one thread, 10,000 on two. A packed training pass is few large ones:
13,500 tokens/s on one, 22,200 on two. OMP_NUM_THREADS overrides all of it, and HUD_SAMPLERS sets how many processes sample
a small model.
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
"""Default limit on the processes that sample a small model: each takes some 200 MB, and sequences are few."""

MOST_PASSES = 8
"""Most training passes of a small model at the same time: each holds a gradient of its own, of up to 80 MB."""

MOST_GRADIENT_BYTES = 2 << 30
"""Most memory of the gradients of a larger model's training passes at the same time."""

TURN_SECONDS = 0.0005
"""Longest time for which a thread may hold the interpreter's lock during training passes."""

T = TypeVar("T")

_most = torch.get_num_threads()
_most_sampling = _most
_on_all = ThreadPoolExecutor(1, "hud-compute")
_here = threading.local()
_under_way: list[None] = []
"""One entry for each batch of passes that is computed now."""


def limit(*, sampling: int | None = None, training: int | None = None) -> None:
    """Limit the threads of later work. Sampling counts the processes of small models, of one thread each, too."""
    global _most, _most_sampling
    _most_sampling = sampling or _most_sampling
    _most = training or _most


def for_sampling(parameters: int) -> None:
    """Set the threads of this thread's next operations for decode steps."""
    _use(1 if parameters <= SMALL_PARAMETERS else _most_sampling)


def sampling_processes(parameters: int) -> int:
    """Return how many processes, of one thread each, sample a decoder of so many parameters fastest."""
    if parameters > SMALL_PARAMETERS:
        return 1
    wanted = settings.load().samplers
    if wanted is not None:
        return wanted
    return 1 if "OMP_NUM_THREADS" in os.environ else min(_most_sampling, MOST_PROCESSES)


def for_training() -> None:
    """Set the threads of this thread's next operations for training passes."""
    _use(_most)


def on_all_cores(work: Callable[[], T]) -> T:
    """Run `work` in the one thread of this process that computes with OpenMP helpers; return its result.

    OpenMP keeps helpers for each thread that ever used any. Once there are more threads than cores, they go to sleep after
    every operation: on two cores, a pass of 2,200 tokens through 3.3 million parameters then takes 0.56 s instead of 0.37 s.
    `work` itself sets what torch keeps for each thread, such as `no_grad`.
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


def passes_at_once(parameters: int, gradient_bytes: int = 0) -> int:
    """Return how many training passes, of one thread each, to compute at the same time.

    Above `SMALL_PARAMETERS` it is as many as there are cores, or 1: where the gradients of so many, of `gradient_bytes` each,
    take more than `MOST_GRADIENT_BYTES`, helpers of OpenMP are better than idle cores.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return 1
    if parameters <= SMALL_PARAMETERS:
        return min(_most, MOST_PASSES)
    fits = _most <= MOST_PASSES and _most * gradient_bytes <= MOST_GRADIENT_BYTES
    return _most if fits else 1


def in_parallel(works: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of `works`, in their order, computed by threads of one core each.

    Independent threads lose little where other processes use the cores too. Helpers of OpenMP wait for each other in every
    operation: next to one busy process, a pass of 0.3 s then takes seconds.
    """
    pool = _beside(min(_most, MOST_PASSES))
    futures = deque(pool.submit(work) for work in works)
    _under_way.append(None)
    try:
        while futures:
            yield futures.popleft().result()  # No longer held here: it may be large.
    finally:
        _under_way.pop()
        # A caller that stops early may change the weights next.
        for future in futures:
            future.cancel()
        wait(futures)


def passes_under_way() -> bool:
    """Return True while training passes are computed in parallel."""
    return bool(_under_way)


@cache
def _beside(count: int) -> ThreadPoolExecutor:
    # They need the interpreter's lock after each operation, which the loop of rollouts holds as long as it may.
    sys.setswitchinterval(min(sys.getswitchinterval(), TURN_SECONDS))
    return ThreadPoolExecutor(count, "hud-pass", initializer=_use, initargs=(1,))


def _use(count: int) -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count)


# All other work is done without helpers, by the thread that needs it.
_use(1)
