"""Training passes in other processes, the first free one first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.pass_computer import PassResult
from hud.errors import InfrastructureFault
from hud.learning.losses.config import LossConfig

log = logging.getLogger(__name__)

Compute = Callable[[PackedPass, LossConfig | None], PassResult]
"""Computes a pass and, with a loss, the gradients of all parameters."""


class PassWorker(Protocol):
    """A process that computes passes with the same weights."""

    def compute(
        self, batch: PackedPass, loss: LossConfig | None, *, checkpointed: bool
    ) -> PassResult:
        """Compute a pass; without a loss its logprobs alone.

        Raises `InfrastructureFault` if it fails there, or the process has ended.
        """


def on_first_free(workers: Sequence[PassWorker], here: Compute, *, checkpointed: bool) -> Compute:
    """Return a function that computes a pass in the first free worker, and by `here` if that fails."""
    free: SimpleQueue[PassWorker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def compute(batch: PackedPass, loss: LossConfig | None) -> PassResult:
        worker = free.get()
        try:
            return worker.compute(batch, loss, checkpointed=checkpointed)
        except InfrastructureFault as fault:
            log.warning("%s It is computed in this process.", fault)
            return here(batch, loss)
        finally:
            free.put(worker)

    return compute
