"""Logprobs of the sampled tokens of a packed pass.

Logits are computed at the positions that predict a sampled token and nowhere else, and where they are many, in
chunks that are computed again in the backward pass: the logits of a whole batch never exist at once.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hud.engine.packed import PackedPass

LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Most logits (tokens x vocabulary) held at a time: 64 MiB in fp32, about a CPU's cache; on a GPU 1 GiB: each chunk reads
the whole vocabulary's weights and adds to their gradient, which costs more than it computes below some thousand tokens."""


class PackedDecoder(Protocol):
    """What a pass asks of a decoder. `prefixes` is None unless the decoder says that it `shares_prefixes`."""

    def hidden_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return (L, H), the final hidden states of sequences laid end to end, or (N, H) of `rows` (N,) alone."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (N, V)."""
        ...


def pass_logprobs(
    decoder: PackedDecoder, batch: PackedPass, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return (N,) fp32 logprobs of the sampled tokens and, where asked for, entropies of their distributions."""
    hidden = decoder.hidden_packed(
        batch.input_ids, batch.positions, batch.cu_seqlens, batch.prefixes, batch.predicts
    )
    targets, temperatures = batch.targets, batch.temperatures
    most = LOGITS_AT_ONCE.get(hidden.device.type, LOGITS_AT_ONCE["cpu"])
    rows = max(1, most // _vocabulary(decoder))
    if len(targets) <= rows:
        return _logprobs(decoder, hidden, targets, temperatures, entropy)
    parts = [
        checkpoint(
            _logprobs,
            decoder,
            hidden[start : start + rows],
            targets[start : start + rows],
            None if temperatures is None else temperatures[start : start + rows],
            entropy,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, len(targets), rows)
    ]
    logprobs = torch.cat([part[0] for part in parts])
    return logprobs, torch.cat([part[1] for part in parts]) if entropy else None


def _logprobs(
    decoder: PackedDecoder,
    hidden: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    logits = decoder.logits(hidden)
    # fp64 stays: gradient checks run in it.
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperatures is not None:
        logits = logits / temperatures[:, None]
    if not entropy:
        return -F.cross_entropy(logits, targets, reduction="none"), None
    everything = logits.log_softmax(-1)
    logprobs = everything.gather(-1, targets[:, None]).squeeze(-1)
    return logprobs, -(everything.exp() * everything).sum(-1)


def _vocabulary(decoder: PackedDecoder) -> int:
    config = getattr(decoder, "config", None)
    return int(getattr(config, "vocab_size", 0) or 32_000)
