"""The parent's side of a worker process that samples and computes training passes; see `worker` for the other side."""

from __future__ import annotations

import itertools
import os
import queue
import select
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.pass_computer import PassResult
from hud.engine.sample.options import SamplerOptions
from hud.engine.sample.request import Request, SamplerClosed, Turn
from hud.engine.sample.token_sampling import Uniforms
from hud.engine.workers.shared_weights import SharedWeights, shared_memory
from hud.errors import InfrastructureFault
from hud.learning.losses.config import LossConfig
from hud.processes.connected_child import ConnectedChild

STILL_SECONDS = 600.0
"""Time-out for active turns to end before a change of weights."""
SHORT_TOKENS = 8_192
"""Longest prompt that is written to a writable pipe at once: Linux reports one as writable while three quarters are free."""


class WorkerProcess:
    """A process that computes on one thread, with weights that this process changes."""

    def __init__(
        self, weights: SharedWeights, options: SamplerOptions, *, version: str | None
    ) -> None:
        gradients = shared_memory(weights.plan.size)
        passed = (weights.descriptor, gradients)
        try:
            self._child = ConnectedChild(
                [sys.executable, "-m", "hud.engine.workers.worker", *map(str, passed)],
                descriptors=passed,
                # torch prefers MKL's own setting.
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
            self._gradients = weights.plan.tensors(gradients)
        finally:
            os.close(gradients)
        self._connection = self._child.connection
        self.ready = threading.Event()
        """Event: set when it samples, or has failed to start."""
        self.alive = True
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._computing = threading.Lock()
        """Held while a pass is computed: there is memory for one pass's gradients."""
        self._passed: Future[PassResult] | None = None
        self._still = threading.Event()
        self._outbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._behind = 0
        """Messages in the outbox or being sent."""
        self._order = threading.Lock()
        self._takes_more = select.poll()
        self._takes_more.register(self._connection, select.POLLOUT)
        self._post((weights.plan, options, version))
        for work in (self._send, self._receive):
            threading.Thread(target=work, name="hud-side", daemon=True).start()

    @property
    def load(self) -> int:
        """Active and waiting sequences."""
        return len(self._requests)

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn; see `Sampler.submit`. Raises `SamplerClosed` once the process has ended."""
        number = next(self._numbers)
        request = Request(
            **vars(turn),
            uniforms=Uniforms(turn.params.seed),
            most=turn.params.most_tokens(),
            listener=listener,
            cancel=partial(self._abandon, number),
        )
        with self._lock:
            if not self.alive:
                raise SamplerClosed("The sampling process has ended.")
            self._requests[number] = request
        self._post(("draw", number, turn), short=len(turn.prompt) <= SHORT_TOKENS)
        return request

    def compute(
        self, batch: PackedPass, loss: LossConfig | None, *, checkpointed: bool
    ) -> PassResult:
        """Compute a pass; without a loss its logprobs alone.

        Raises `InfrastructureFault` if it fails there, or the process has ended.
        """
        with self._computing:
            passed: Future[PassResult] = Future()
            with self._lock:
                if not self.alive:
                    raise InfrastructureFault("The process beside this one has ended.")
                self._passed = passed
            self._post(("pass", batch, loss, checkpointed))
            return passed.result()

    def pause(self, *, in_flight: bool) -> None:
        """Begin to pause sampling; `wait_still` returns when it is paused."""
        self._still.clear()
        self._post(("pause", in_flight))

    def wait_still(self) -> None:
        """Wait until it is paused, or has ended. Raises `InfrastructureFault` after `STILL_SECONDS`."""
        if not self._still.wait(STILL_SECONDS):
            raise InfrastructureFault(
                f"A sampling process did not come to rest within {STILL_SECONDS:.0f} seconds."
            )

    def set_version(self, version: str | None) -> None:
        """Rename the weights, while it is paused."""
        self._post(("version", version))

    def resume(self) -> None:
        """Continue sampling."""
        self._post(("resume",))

    def close(self) -> None:
        """Kill the process; unfinished requests end with an `InfrastructureFault`."""
        self._child.reap()  # It holds no state.
        self._end()

    def _abandon(self, number: int) -> None:
        with self._lock:
            request = self._requests.pop(number, None)
        if request is not None:
            self._post(("abandon", number))

    def _post(self, message: tuple[Any, ...], *, short: bool = False) -> None:
        """Send a message after those before it, without blocking: the worker may be busy with a step.

        A short one is written to the pipe directly if that has room: waking a thread costs several times as much where every
        core is busy.
        """
        with self._order:
            if short and not self._behind and self._takes_more.poll(0):
                with suppress(OSError):  # The receiving thread handles the end of the process.
                    self._connection.send(message)
                return
            self._behind += 1
            self._outbox.put(message)

    # -- threads ------------------------------------------------------------------------------------

    def _send(self) -> None:
        with suppress(OSError):
            while message := self._outbox.get():
                self._connection.send(message)
                with self._order:
                    self._behind -= 1

    def _receive(self) -> None:
        try:
            while True:
                kind, *rest = self._connection.recv()
                if kind == "drawn":
                    self._take(rest[0])
                elif kind == "passed":
                    self._take_pass(*rest)
                elif kind == "failed":
                    self._end_pass("It failed there.")
                elif kind == "still":
                    self._still.set()
                elif kind == "ready":
                    self.ready.set()
        except (EOFError, OSError):
            pass
        finally:
            self._end()

    def _take(self, news: list[tuple[Any, ...]]) -> None:
        listeners: set[Callable[[], None]] = set()
        for number, ids, logprobs, likeliest, cached, version, swaps, ended in news:
            request = self._requests.get(number)
            if request is None:
                continue
            request.cached, request.version, request.swaps = cached, version, swaps
            request.token_ids += ids
            request.likeliest += likeliest
            request.logprobs += logprobs
            if ended is not None:
                with self._lock:
                    self._requests.pop(number, None)
                if isinstance(ended, InfrastructureFault):
                    request.outcome = ended
                else:
                    request.end(ended)
            listeners.add(request.listener)
        for listener in listeners:
            listener()

    def _take_pass(
        self, logprobs: np.ndarray, sums: dict[str, float], there: list[bool] | None
    ) -> None:
        gradients = None
        if there is not None:
            # Copies: the next pass overwrites the shared memory.
            gradients = [
                gradient.clone() if is_there else None
                for gradient, is_there in zip(self._gradients, there, strict=True)
            ]
        self._end_pass(PassResult(torch.from_numpy(logprobs), sums, gradients))

    def _end_pass(self, result: PassResult | str) -> None:
        """Settle the running pass, if there is one, with its result or the reason why it has none."""
        with self._lock:
            passed, self._passed = self._passed, None
        if passed is not None and isinstance(result, PassResult):
            passed.set_result(result)
        elif passed is not None:
            passed.set_exception(InfrastructureFault(f"A training pass was not computed: {result}"))

    def _end(self) -> None:
        """End all waiting: requests, passes and pauses."""
        with self._lock:
            self.alive = False
            lost = list(self._requests.values())
            self._requests.clear()
        self._outbox.put(())
        self.ready.set()
        self._still.set()
        self._end_pass("The process ended.")
        for request in lost:
            request.outcome = InfrastructureFault(
                "The sampling process ended while it was drawing."
            )
            request.listener()
