"""The samplers of one policy: one in this process and, for a small model on several cores, one in a worker process for each core.

A decode step of a small model is many tiny operations, which a second thread does not make faster (`cpu_threads`); a second
process, with half of the sequences, does. This process then samples only turns that need it, since it shares the interpreter's
lock with the tools and templates of all rollouts. The workers compute with one copy of the weights, refreshed after every change,
and compute training passes too. A turn goes to the sampler with the least work for it: fewest sequences, and most of its prompt
cached. During training, half of the workers sample and the others compute passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from hud.engine.cpu_threads import passes_under_way, sampling_processes
from hud.engine.decoder import Decoder
from hud.engine.kernels import backend_for
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.options import CacheFacts, SamplerOptions
from hud.engine.sample.request import Request, SamplerClosed, Turn
from hud.engine.sample.weight_swap import SwappingSampler
from hud.engine.workers.prefix_index import BLOCK, PrefixIndex, block_hashes
from hud.engine.workers.shared_weights import SharedWeights
from hud.engine.workers.worker_handle import WorkerProcess

BUSY_STEPS = 400
"""Steps after which worker processes are worth the seconds that they take to start."""
BUSY_SEQUENCES = 8
"""Fewest active sequences for which workers are started."""
TRAINING_SECONDS = 10.0
"""Seconds after a training pass in which further ones are expected."""
TOKENS_PER_SEQUENCE = 32
"""Prompt tokens that cost as much as one more active sequence."""


class SamplerPool:
    """The `TurnSampler` of one decoder, whose weights change in place."""

    def __init__(
        self, decoder: Decoder, options: SamplerOptions, *, version: str | None = None
    ) -> None:
        self.decoder = decoder
        self.options = options
        self.own = SwappingSampler(decoder, options, version=version)
        self._sides: list[WorkerProcess] = []
        self._weights: SharedWeights | None = None
        self._changing = threading.RLock()
        self._starting: threading.Thread | None = None
        self._closed = False
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        ours = decoder.config.ours and decoder.device.type == "cpu"
        ours = ours and backend_for("cpu") is not None
        processes = sampling_processes(parameters) if ours else 1
        self._wanted = processes if processes > 1 else 0
        self._training_until = 0.0
        self._prefixes = PrefixIndex()

    @property
    def version(self) -> str | None:
        """The checkpoint whose weights these are; None: the base weights."""
        return self.own.version

    @version.setter
    def version(self, version: str | None) -> None:
        with self._changing:
            self.own.version = version
            for side in self._sides:
                side.set_version(version)

    @property
    def load(self) -> int:
        return self.own.load + sum(side.load for side in self._sides)

    @property
    def closed(self) -> bool:
        return self.own.sampler.closed

    @property
    def cache(self) -> CacheFacts:
        return self.own.sampler.facts

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        self.own.sampler.check(turn.prompt, turn.pictures)
        # Grammars and text stops are in this process.
        here = turn.constraint is not None or turn.stopped is not None
        self._start_sides()
        sides = [] if here else self._ready()
        if not sides:
            return self.own.submit(turn, listener)
        most = self._half if self._training() else self._wanted
        members: list[SwappingSampler | WorkerProcess] = [*sides[:most]]
        if len(sides) < most:
            members.append(self.own)
        hashes = block_hashes(turn.prompt)
        chosen = min(members, key=lambda member: self._cost(member, hashes))
        with suppress(SamplerClosed):
            return self._give(chosen, turn, hashes, listener)
        return self.own.submit(turn, listener)

    def beside(self) -> list[WorkerProcess]:
        """Return the workers that compute training passes now: all, or those that do not sample meanwhile."""
        sides = self._ready()
        if len(sides) < self._wanted:
            return []
        drawing = any(side.load for side in sides)
        return sides[self._half :] if drawing or self._training() else sides

    def queue_length(self) -> int:
        return self.own.sampler.queue_length()

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        with self._changing:
            sides = [side for side in self._sides if side.alive]
            drawing = [side for side in sides if side.ready.is_set()]
            for side in sides:
                side.pause(in_flight=in_flight)
            try:
                with self.own.exclusive(in_flight=in_flight):
                    for side in drawing:  # One that is still starting pauses before its first turn.
                        side.wait_still()
                    yield
                    self._prefixes.clear()
            finally:
                if self._weights is not None and not self._weights.refresh(self.decoder):
                    self._drop_sides()
                for side in sides:
                    side.resume()

    def revive(self) -> None:
        self.own.revive()

    def close(self) -> None:
        """Stop sampling; unfinished requests end with an `InfrastructureFault`."""
        self._closed = True
        if self._starting is not None:
            self._starting.join()
        self.own.close()
        with self._changing:
            self._drop_sides()

    # -- other processes ----------------------------------------------------------------------------

    def _start_sides(self) -> None:
        """Start workers in the background, once there has been enough to sample."""
        self._sides = [side for side in self._sides if side.alive]
        if len(self._sides) >= self._wanted or self._starting is not None or self._closed:
            return
        if self.own.sampler.steps < BUSY_STEPS or self.own.load < BUSY_SEQUENCES:
            return
        self._starting = threading.Thread(target=self._start, name="hud-start", daemon=True)
        self._starting.start()

    def _ready(self) -> list[WorkerProcess]:
        """Return the workers that accept turns."""
        return [side for side in self._sides if side.alive and side.ready.is_set()]

    def _start(self) -> None:
        try:
            with self._changing:
                assert isinstance(self.decoder, ReferenceDecoder)
                if self._weights is None:
                    self._weights = SharedWeights(self.decoder)
                while len(self._sides) < self._wanted:
                    side = WorkerProcess(self._weights, self.options, version=self.version)
                    self._sides = [*self._sides, side]
        finally:
            self._starting = None

    def _drop_sides(self) -> None:
        """End the workers, as when an adapter was attached or layers were replaced."""
        if self._weights is None:
            return
        for side in self._sides:
            side.close()
        self._sides = []
        self._weights.close()
        self._weights = None

    # -- routing ------------------------------------------------------------------------------------

    def _training(self) -> bool:
        """Return whether training passes are computed now, or were lately."""
        now = monotonic()
        if passes_under_way():
            self._training_until = now + TRAINING_SECONDS
        return now < self._training_until

    @property
    def _half(self) -> int:
        """Number of workers that sample during training."""
        return -(-self._wanted // 2)

    def _cost(self, sampler: SwappingSampler | WorkerProcess, hashes: list[int]) -> float:
        """Return the relative cost of a prompt for a sampler, in sequences."""
        return sampler.load - self._prefixes.length(sampler, hashes) * BLOCK / TOKENS_PER_SEQUENCE

    def _give(
        self,
        sampler: SwappingSampler | WorkerProcess,
        turn: Turn,
        hashes: list[int],
        listener: Callable[[], None],
    ) -> Request:
        """Submit a turn to one sampler, and record in the index its prompt and, at the end, its tokens."""
        made: list[Request] = []

        def heard() -> None:
            if made and made[0].outcome is not None:
                self._prefixes.remember(sampler, block_hashes(made[0].ids))
            listener()

        made.append(sampler.submit(turn, heard))
        self._prefixes.remember(sampler, hashes)
        return made[0]
