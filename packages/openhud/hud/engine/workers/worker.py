"""A worker process that samples and computes training passes: `python -m hud.engine.workers.worker FD FD`.

The descriptors are the parent's weights, and memory for their gradients. It ends when its connection to the parent does.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np

from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.training_pass import pass_computer
from hud.engine.sample.options import SamplerOptions
from hud.engine.sample.request import Request, SampledTurn, Turn
from hud.engine.sample.weight_swap import SwappingSampler
from hud.engine.workers.shared_weights import Plan, decoder_over
from hud.errors import InfrastructureFault
from hud.learning.losses.config import LossConfig
from hud.processes.connected_child import connection_to_parent


class Worker:
    """Executes the messages of one parent."""

    def __init__(self, parent: Connection, weights: int, gradients: int) -> None:
        self._parent = parent
        first: tuple[Plan, SamplerOptions, str | None] = parent.recv()
        plan, options, version = first
        self._sampler = SwappingSampler(decoder_over(plan, weights), options, version=version)
        self._passes: SimpleQueue[tuple[PackedPass, LossConfig | None, bool]] = SimpleQueue()
        self._trained = decoder_over(plan, weights).requires_grad_(True)
        """The same weights, for training passes."""
        self._computer = pass_computer(self._trained)
        self._gradients = plan.tensors(gradients)
        self._requests: dict[int, tuple[Request, int]] = {}
        """By number: an active request, and how many of its tokens were sent."""
        self._lock = threading.Lock()
        self._answering = threading.Lock()
        """A long message is written in parts."""
        self._woken = threading.Event()
        self._still: ExitStack | None = None
        """The pause of the sampler while weights change."""

    def work(self) -> None:
        """Execute messages until the connection ends."""
        for work in (self._tell, self._compute):
            threading.Thread(target=work, name="hud-work", daemon=True).start()
        self._answer(("ready",))
        while True:
            kind, *rest = self._parent.recv()
            if kind == "draw":
                self._draw(*rest)
            elif kind == "abandon":
                self._abandon(*rest)
            elif kind == "pass":
                self._passes.put(tuple(rest))
            elif kind == "pause":
                self._still = ExitStack()
                self._still.enter_context(self._sampler.exclusive(in_flight=rest[0]))
                self._answer(("still",))
            elif kind == "version":
                self._sampler.version = rest[0]
            elif kind == "resume" and self._still is not None:
                self._still.close()
                self._still = None

    def _draw(self, number: int, turn: Turn) -> None:
        try:
            request = self._sampler.submit(turn, self._woken.set)
        except InfrastructureFault as error:
            self._answer(("drawn", [(number, [], [], [], 0, None, [], error)]))
            return
        with self._lock:
            self._requests[number] = (request, 0)
        self._woken.set()

    def _abandon(self, number: int) -> None:
        with self._lock:
            entry = self._requests.pop(number, None)
        if entry is not None:
            entry[0].abandon()

    def _answer(self, message: tuple[Any, ...]) -> None:
        with self._answering:
            self._parent.send(message)

    def _compute(self) -> None:
        """Compute training passes, one after the other."""
        try:
            while True:
                batch, loss, checkpointed = self._passes.get()
                try:
                    result = self._pass(batch, loss, checkpointed)
                except Exception:
                    self._answer(("failed",))  # The parent computes it again, and raises its error.
                else:
                    self._answer(("passed", *result))
        finally:
            os._exit(1)  # The parent waits for an answer, or for the end.

    def _pass(
        self, batch: PackedPass, loss: LossConfig | None, checkpointed: bool
    ) -> tuple[np.ndarray, dict[str, float], list[bool] | None]:
        """Compute a pass, and write its gradients to shared memory. Returns logprobs, metrics and which gradients there are."""
        if loss is None:
            return self._computer.logprobs(batch).logprobs.numpy(), {}, None
        self._trained.checkpointed = checkpointed
        result = self._computer.gradient(batch, loss, trained=list(self._trained.parameters()))
        gradients = result.gradients or ()
        for place, gradient in zip(self._gradients, gradients, strict=True):
            if gradient is not None:
                place.copy_(gradient)
        return result.logprobs.numpy(), result.sums, [grad is not None for grad in gradients]

    def _tell(self) -> None:
        """Send the tokens sampled since the last message, of all sequences at once."""
        with suppress(OSError):
            while self._woken.wait():
                self._woken.clear()
                news = self._news()
                if news:
                    self._answer(("drawn", news))

    def _news(self) -> list[tuple[Any, ...]]:
        with self._lock:
            requests = list(self._requests.items())
        news: list[tuple[Any, ...]] = []
        for number, (request, seen) in requests:
            # Read first: once it has ended, all its tokens are in the lists.
            outcome = request.outcome
            end = request.shown
            if outcome is None and end == seen:
                continue
            news.append(
                (
                    number,
                    request.token_ids[seen:end],
                    request.logprobs[seen:end],
                    request.likeliest[seen:end],
                    request.cached,
                    request.version,
                    request.swaps,
                    # Without its tokens, which are here or were sent before.
                    outcome.finish_reason if isinstance(outcome, SampledTurn) else outcome,
                )
            )
            with self._lock:
                if outcome is not None:
                    self._requests.pop(number, None)
                elif number in self._requests:
                    self._requests[number] = (request, end)
        return news


def main() -> None:
    """Run a worker for the parent process."""
    process = Worker(connection_to_parent(), *map(int, sys.argv[1:]))
    with suppress(EOFError, OSError):
        process.work()
    os._exit(0)  # The parent is gone: do not wait for a thread in the middle of a step.


if __name__ == "__main__":
    main()
