"""A sampler whose weights change in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hud.engine.decoder import Decoder
from hud.engine.lora import lora_parameters
from hud.engine.sample.adapter_bank import sharing
from hud.engine.sample.options import SamplerOptions
from hud.engine.sample.request import Request, SamplerClosed, Turn
from hud.engine.sample.sampler import Sampler

HAND_OVER_BYTES = 1 << 30
"""Most bytes for a second cache and a copy of the changing weights, while active turns are finished."""


class SwappingSampler:
    """The samplers of one decoder: one that accepts turns and, while older turns are finished with old weights, another."""

    def __init__(
        self, decoder: Decoder, options: SamplerOptions, *, version: str | None = None
    ) -> None:
        self.decoder = decoder
        self.options = options
        self.sampler = Sampler(decoder, **vars(options), version=version)
        self._changing = threading.RLock()
        self._retiring: Sampler | None = None
        """Finishes the turns that were active when the weights changed."""

    @property
    def version(self) -> str | None:
        """The checkpoint whose weights these are; None: the base weights."""
        return self.sampler.version

    @version.setter
    def version(self, version: str | None) -> None:
        self.sampler.set_version(version)

    @property
    def load(self) -> int:
        return len(self.sampler.active) + len(self.sampler.waiting)

    def submit(self, turn: Turn, listener: Callable[[], None]) -> Request:
        """Queue one turn; see `Sampler.submit`. Raises `SamplerClosed`."""
        while True:
            sampler = self.sampler
            try:
                return sampler.submit(turn, listener)
            except SamplerClosed:
                if sampler is self.sampler:
                    raise
                # A successor took over meanwhile.

    @contextmanager
    def exclusive(self, *, in_flight: bool = False) -> Iterator[None]:
        with self._changing:
            successor = None if in_flight else self._successor()
            with (successor or self.sampler).exclusive(in_flight=in_flight):
                if successor is not None:
                    self._retiring, self.sampler = self.sampler, successor
                    self._retiring.hand_over(successor, copied(self.decoder))
                yield
                self.sampler.prefix_cache.forget()

    def _successor(self) -> Sampler | None:
        """Return a sampler to continue with while this one finishes its active turns; None if that does not pay."""
        if not self.sampler.active or (self._retiring is not None and self._retiring.active):
            return None
        changing = lora_parameters(self.decoder).values() or self.decoder.parameters()
        if (
            self.sampler.cache_bytes + sum(parameter.nbytes for parameter in changing)
            > HAND_OVER_BYTES
        ):
            return None
        return Sampler(self.decoder, **vars(self.options), version=self.version)

    def revive(self) -> None:
        if self.sampler.closed:
            version = self.version
            self.sampler.close()  # Its memory is needed.
            self.sampler = Sampler(self.decoder, **vars(self.options), version=version)

    def close(self) -> None:
        self.sampler.close()
        if self._retiring is not None:
            self._retiring.close()


def copied(decoder: Decoder) -> Decoder:
    """Return a copy that keeps its weights when those of `decoder` change; of an adapted one they share the base's."""
    adapter = {id(parameter) for parameter in lora_parameters(decoder).values()}
    shared = (
        parameter for parameter in decoder.parameters() if adapter and id(parameter) not in adapter
    )
    return sharing(decoder, shared)
