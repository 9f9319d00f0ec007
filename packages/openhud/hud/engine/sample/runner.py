"""The port of runners: a batch of decode steps, and passes over prompt chunks, for sequences that the scheduler chose.

The scheduler decides, the runner computes, in the sampler's thread and under `torch.inference_mode`. It computes new tokens on
top of a key-value cache, samples the next token of each sequence, and appends what it has computed to `request.place.tokens`.
Implementations: `plain_runner.PlainRunner`, which uses a decoder as it is, and those of kernel backends (`engine.kernels`).
`tests/ports/test_runner_port.py` is their conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from hud.engine.decoder import Decoder
from hud.engine.sample.adapter_bank import AdapterBank
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.prefix_cache import PrefixCache
from hud.engine.sample.request import Request
from hud.engine.sample.scheduler import Chunk, Scheduler

Sampled = list[tuple[Request, list[int], list[float]]]
"""Each request's new tokens and their logprobs, under the distribution that each was sampled from (fp32, natural log)."""


class Runner(Protocol):
    """Computes and samples with one decoder, or with a bank of adapters over it."""

    cache_type: ClassVar[type[KVCache]]
    """Class of the cache that it computes with: `KVCache`, or one with the same pages."""

    prefix_cache_type: ClassVar[type[PrefixCache]]
    """Class of the slots: `PrefixCache`, or one that shares nothing."""

    packs: ClassVar[bool]
    """True: prompt chunks of any lengths are one pass, without padding."""

    interrupted: Callable[[], bool]
    """Set by the sampler. Returns True while a caller waits for the end of `decode`."""

    deliver: Callable[[Sampled], None]
    """Set by the sampler. Takes tokens that are known before the end of `decode`, which does not return them again."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, most: int, bank: AdapterBank | None = None
    ) -> None:
        """`most`: the largest batch of `decode`. `bank`: adapters of the rows, where forks share the decoder."""

    def use(self, decoder: Decoder) -> None:
        """Compute with another decoder of the same shape."""

    def refresh(self) -> None:
        """Compute with the decoder's weights as they are now; called before the first pass and after each change."""

    def warm_up(self) -> bool:
        """Do what would hold up sequences later; called while none is active. False: `interrupted`, and not done yet."""

    def prompt_tokens(self, usual: int) -> int:
        """Return how many prompt tokens the next step may compute beside decoding sequences; `usual`: by size alone."""

    def reserve(self, batch: Sequence[Chunk], scheduler: Scheduler) -> None:
        """Prepare the next `decode` of `batch`, while the scheduler is locked."""

    def step(self, chunks: Sequence[Chunk]) -> Sampled:
        """Compute chunks of sequences; sample one token for each sequence that is then in the cache as a whole.

        `request.uniforms` has one number for each token. Same weights and numbers sample the same tokens, whatever the batch.
        """

    def decode(self, batch: Sequence[Chunk]) -> Sampled:
        """Compute the one token that each sequence lacks, and sample the next, or several, as `reserve` prepared.

        A sequence ends only with the last of the tokens returned for it.
        """
