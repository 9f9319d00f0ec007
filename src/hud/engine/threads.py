"""How many CPU threads torch works with: sampling and training of small models differ.

A decode step of a small model is many tiny operations, and handing each to a second thread costs more than it
brings: measured on two cores with 0.8 million parameters, 18,600 tokens/s on one thread, 10,000 on two. A packed
training pass is few large ones: 13,500 tokens/s on one, 22,200 on two. Whoever sets OMP_NUM_THREADS decides alone, and
HUD_SAMPLERS how many processes sample a small model.
"""

from __future__ import annotations

import os

import torch

from hud import settings

SMALL_PARAMETERS = 20_000_000
"""Up to this many parameters a decoder is sampled on one thread, in several processes. Above, each process would read more
weights than it computes with: one process with all threads is better."""

_most = torch.get_num_threads()


def use_at_most(count: int) -> None:
    """Leave the machine's other cores to others: from here on no thread asks for more than this many."""
    global _most
    _most = count
    _use(count)


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
    return 1 if "OMP_NUM_THREADS" in os.environ else _most


def for_training() -> None:
    """Set the threads of this thread's next operations for training passes."""
    _use(_most)


def _use(count: int) -> None:
    # The matrix library's count is the process's, OpenMP's each thread's own: both are set before work begins, also where this
    # thread's own is right already, as another thread may have changed the library's.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count)
