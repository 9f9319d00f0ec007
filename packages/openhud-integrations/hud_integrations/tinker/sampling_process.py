"""Tinker's client in a process of its own.

A request costs the client some milliseconds of Python, in which no agent of the same process proceeds.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import sys
import threading
import weakref
from collections import deque
from collections.abc import Awaitable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hud.errors import InfrastructureFault, UsageError
from hud.processes.connected_child import ChildEnded, ConnectedChild

START_SECONDS = 120.0
CLOSE_SECONDS = 10.0
ENDED = "The process of the Tinker client has ended; what it printed says why. Start another SamplingProcess."


@dataclass(frozen=True)
class SampledSequence:
    """A sequence of a `Sampled`, as Tinker's client returns it."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: str


@dataclass(frozen=True)
class Sampled:
    """The parts of Tinker's `SampleResponse` that runs take."""

    sequences: list[SampledSequence]
    prompt_cache_hit_tokens: int | None


class SamplingProcess:
    """A process that sends the requests of sampling clients.

        with SamplingProcess() as process:
            model = TinkerModel(process.client(sampler), folder)

    One process serves the sampling clients of all steps. It takes some seconds to start, as it imports `tinker`.
    """

    def __init__(self) -> None:
        """Return when the process takes requests. Raises `UsageError` if `tinker` cannot be imported there."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Sampled]] = {}
        self._sending = threading.Lock()
        self._unused: deque[int] = deque()
        """Samplers that nothing refers to any more, which the process still holds."""
        self._ended = False
        command = [sys.executable, "-m", "hud_integrations.tinker.sampling_worker"]
        self._child = ConnectedChild(command)
        self._connection = self._child.connection
        try:
            with self._child.exchange(START_SECONDS):
                self._connection.recv()
        except ChildEnded:
            raise UsageError(
                "The process of the Tinker client did not start; it needs: pip install tinker"
            ) from None
        self._reading = threading.Thread(target=self._read, name="hud-tinker", daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def client(self, sampler: Any) -> RemoteSampler:
        """Return a `tinker.SamplingClient` whose requests this process sends, with its credentials."""
        number = next(self._numbers)
        self._send((number, pickle.dumps(sampler)))
        made = RemoteSampler(self, number)
        weakref.finalize(made, self._unused.append, number)
        return made

    def ask(self, sampler: int, *request: Any) -> Future[Sampled]:
        """Send a request of the sampler of that number. Raises `InfrastructureFault` after the process has ended."""
        number = next(self._numbers)
        future = self._waiting[number] = Future()
        self._send((number, sampler, *request))
        if self._ended and self._waiting.pop(number, None) is not None:
            raise InfrastructureFault(ENDED)  # Nothing else would resolve it.
        return future

    def close(self) -> None:
        """End the process; requests in flight fail with an `InfrastructureFault`."""
        with suppress(InfrastructureFault):
            self._send(None)
        self._child.reap(CLOSE_SECONDS)
        self._reading.join()
        self._connection.close()

    def __enter__(self) -> SamplingProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, message: Any) -> None:
        try:
            with self._sending:
                while self._unused:
                    self._connection.send((self._unused.popleft(), None))
                self._connection.send(message)
        except OSError as error:
            raise InfrastructureFault(ENDED) from error

    def _read(self) -> None:
        """Resolve requests until the process ends."""
        with suppress(EOFError, OSError):
            while True:
                number, outcome = self._connection.recv()
                future = self._waiting.pop(number)
                if not future.set_running_or_notify_cancel():
                    continue
                if isinstance(outcome, Sampled):
                    future.set_result(outcome)
                else:
                    future.set_exception(InfrastructureFault(outcome))
        self._ended = True
        while self._waiting:
            _, future = self._waiting.popitem()
            if future.set_running_or_notify_cancel():
                future.set_exception(InfrastructureFault(ENDED))


@dataclass(frozen=True, eq=False)
class RemoteSampler:
    """A sampling client whose requests a `SamplingProcess` sends."""

    process: SamplingProcess
    number: int

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Awaitable[Sampled]:
        """Sample sequences, as `SamplingClient.sample` does. Raises `InfrastructureFault` for a failed request."""
        response = self.process.ask(self.number, prompt.to_ints(), num_samples, sampling_params)
        return asyncio.wrap_future(response)
