"""Forks of one base (multi-LoRA): policies with an adapter each, which share the base's weights and are sampled in one batch.

Each fork trains its adapter on a decoder of its own modules over the shared parameters. Sampling uses a copy in the base's
`AdapterBank`, one for each version: a swap waits for no turn, and active turns end with the version that they began with.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from hud.engine.config import DecoderConfig
from hud.engine.lora import lora_layers
from hud.engine.models.file_identity import Version, versions
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.pretrained import load_decoder, weight_bytes, weight_files
from hud.engine.sample.adapter_bank import Adapter, AdapterBank, sharing
from hud.engine.sample.cache_budget import budget_of
from hud.engine.sample.options import BY_MEMORY, CacheFacts, SamplerOptions
from hud.engine.sample.request import Request, Turn
from hud.engine.sample.sampler import Sampler


class SharedBase:
    """The base weights of some forks, and their common sampler."""

    def __init__(self, decoder: ReferenceDecoder, options: SamplerOptions = BY_MEMORY) -> None:
        self.decoder = decoder.requires_grad_(False)
        self.bank = AdapterBank(decoder)
        self.options = options
        self.sampler = Sampler(self.bank.decoder, **vars(options), bank=self.bank)
        self._forks: set[ForkSampler] = set()
        self._over = False
        self._lock = threading.RLock()

    def fork(self) -> ForkSampler:
        """Return a new fork, whose decoder has no adapter yet. Raises `LookupError` once the last one was closed."""
        with self._lock:
            if self._forks or not self._over:
                fork = ForkSampler(self, sharing(self.decoder, self.decoder.parameters()))
                self._forks.add(fork)
                return fork
        raise LookupError("The base is closed.")

    def publish(self, fork: ForkSampler, version: str | None, *, in_flight: bool) -> None:
        """Sample a fork with its decoder's present adapter; with `in_flight`, its active turns too."""
        with self._lock, self.sampler.exclusive(in_flight=True):
            adapter = self.bank.put(version, lora_layers(fork.decoder))
            fork.adapter = adapter
            if in_flight:
                for request in self.sampler.active:
                    if request.fork is fork:
                        request.adapter = adapter
                        request.swap(version)
                        if request.slot is not None:
                            request.slot.stale = True  # Of two versions: not to be shared.
            self._sweep()

    def leave(self, fork: ForkSampler) -> None:
        """Remove a fork; the last one closes the sampler."""
        with self._lock:
            self._forks.discard(fork)
            self._over = last = not self._forks
            if not last:
                with self.sampler.exclusive(in_flight=True):
                    for request in [*self.sampler.active, *self.sampler.waiting]:
                        if request.fork is fork:
                            request.abandon()
        if last:
            self.sampler.close()

    def revive(self) -> None:
        with self._lock:
            if self.sampler.closed:
                self.sampler.close()  # Its memory is needed.
                self.sampler = Sampler(self.bank.decoder, **vars(self.options), bank=self.bank)

    def _sweep(self) -> None:
        """Drop adapters that no turn will use again."""
        wanted = {fork.adapter for fork in self._forks}
        wanted |= {request.adapter for request in self.sampler.active}
        for adapter in self.bank.held - wanted:
            self.bank.drop(adapter)
            self.sampler.forget_adapter(adapter)


_Loaded = tuple[tuple[Version | None, ...], torch.dtype, str]
"""The files of a base, by their versions, and the type and device of its weights."""


class SharedBases:
    """The bases that this process has loaded; each stays as long as a fork of it."""

    def __init__(self) -> None:
        self._loaded: dict[_Loaded, SharedBase] = {}
        self._locks: defaultdict[_Loaded, threading.Lock] = defaultdict(threading.Lock)

    def fork(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: str,
        options: SamplerOptions = BY_MEMORY,
    ) -> ForkSampler | None:
        """Return a new fork of the base in a folder, loaded if necessary; None for a model outside the decoder's family.

        The first fork's `options` are those of the sampler that all share.
        """
        if not DecoderConfig.from_folder(folder).ours or dist.is_initialized():
            return None  # Distributed training shards the weights differently.
        files = (folder / name for name in ("config.json", *weight_files(folder)))
        key = versions(files), dtype, device
        with self._locks[key]:
            with suppress(LookupError):
                return self._loaded[key].fork()
            with budget_of(device).room_for(weight_bytes(folder, dtype)):
                decoder = load_decoder(folder, dtype=dtype, device=device)
            assert isinstance(decoder, ReferenceDecoder)
            base = self._loaded[key] = SharedBase(decoder, options)
            return base.fork()


class ForkSampler:
    """The `TurnSampler` of one fork."""

    def __init__(self, base: SharedBase, decoder: ReferenceDecoder) -> None:
        self.base = base
        self.decoder = decoder
        """For training; publishing copies its adapter."""
        self.adapter: Adapter | None = None
        """The adapter of turns that begin now."""
        self._changing = threading.RLock()
        self._in_flight = False
        self._published = False

    @property
    def version(self) -> str | None:
        """The checkpoint of the sampled weights; setting it publishes the present ones."""
        return self.adapter.version if self.adapter is not None else None

    @version.setter
    def version(self, version: str | None) -> None:
        with self._changing:
            self.base.publish(self, version, in_flight=self._in_flight)
            self._published = True

    @property
    def load(self) -> int:
        sampler = self.base.sampler
        return sum(request.fork is self for request in [*sampler.active, *sampler.waiting])

    @property
    def closed(self) -> bool:
        return self.base.sampler.closed

    @property
    def cache(self) -> CacheFacts:
        return self.base.sampler.facts

    def queue_length(self) -> int:
        waiting = list(self.base.sampler.waiting)
        return sum(request.fork is self and not request.abandoned for request in waiting)

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        return self.base.sampler.submit(replace(turn, fork=self), listener)

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        """Allow changes of the fork's adapter inside the block; see `Policy.exclusive`. No sampling waits for it."""
        with self._changing:
            self._in_flight, self._published = in_flight, False
            try:
                yield
            finally:
                if not self._published:
                    self.version = self.version
                self._in_flight = False

    def revive(self) -> None:
        self.base.revive()

    def close(self) -> None:
        self.base.leave(self)
