"""Datums as one packed pass, and the logprobs of their sampled tokens.

Sequences are laid end to end without padding. Logits are computed at the positions that predict a sampled
token and nowhere else, and where they are many, in chunks that are computed again in the backward pass: the
logits of a whole batch never exist at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hud.errors import UsageError
from hud.train.action_tokens import ActionTokens
from hud.train.datums import Datum

LOGITS_AT_ONCE = 1 << 24
"""Most logits (tokens x vocabulary) held at a time: 64 MiB in fp32."""


class PackedDecoder(Protocol):
    """What a pass asks of a decoder."""

    def hidden_packed(self, input_ids: Tensor, positions: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return (L, H), the final hidden states of sequences laid end to end."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (N, V)."""
        ...


@dataclass(frozen=True)
class PackedPass:
    """Some datums laid end to end, on the trainer's device."""

    datums: tuple[int, ...]
    """Which datums of the batch, in the order in which they lie here."""
    input_ids: Tensor
    """(L,) int64: each sequence up to the token before its last sampled one."""
    positions: Tensor
    """(L,) int64, from 0 in each sequence."""
    cu_seqlens: Tensor
    """(B + 1,) int64: where each sequence begins, and L."""
    predicts: Tensor
    """(N,) int64: positions in (L,) that predict a sampled token."""
    targets: Tensor
    """(N,) int64: that token."""
    temperatures: Tensor | None
    """(N,) fp32; None where all are 1."""
    sequence: Tensor
    sampling_logprobs: Tensor
    advantages: Tensor
    weights: Tensor

    def tokens(
        self, logprobs: Tensor, entropy: Tensor | None = None, reference: Tensor | None = None
    ) -> ActionTokens:
        """Return what a loss is computed from."""
        return ActionTokens(
            logprobs=logprobs,
            sampling_logprobs=self.sampling_logprobs,
            advantages=self.advantages,
            weights=self.weights,
            sequence=self.sequence,
            sequences=len(self.datums),
            reference_logprobs=reference,
            entropy=entropy,
        )


def computed_tokens(datum: Datum) -> int:
    """Return how many tokens of a datum a pass computes: those before the last sampled one."""
    actions = np.flatnonzero(datum.mask)
    return int(actions[-1]) if len(actions) else 0


def lay_out(
    datums: Sequence[Datum],
    which: Sequence[int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> PackedPass:
    """Return the datums of `which`, each with at least one sampled token, as one pass."""
    inputs, positions, starts, predicts, columns = [], [], [0], [], []
    for row, number in enumerate(which):
        datum = datums[number]
        actions = np.flatnonzero(datum.mask)
        if actions[0] == 0:
            raise UsageError(
                f"Datum {number} samples its first token from nothing; begin it with a prompt."
            )
        length = int(actions[-1])
        inputs.append(datum.tokens[:length])
        positions.append(np.arange(length))
        predicts.append(actions - 1 + starts[-1])
        starts.append(starts[-1] + length)
        columns.append(
            (
                datum.tokens[actions],
                np.full(len(actions), row),
                datum.temperatures[actions],
                datum.logprobs[actions],
                datum.advantages[actions],
                datum.weights[actions],
            )
        )
    targets, sequence, temperatures, *floats = (
        np.concatenate(part) for part in zip(*columns, strict=True)
    )
    tempered = bool((temperatures != 1).any())
    sampling_logprobs, advantages, weights = (_put(part, device, dtype) for part in floats)
    return PackedPass(
        datums=tuple(which),
        input_ids=_put(np.concatenate(inputs), device),
        positions=_put(np.concatenate(positions), device),
        cu_seqlens=_put(np.asarray(starts, np.int64), device),
        predicts=_put(np.concatenate(predicts), device),
        targets=_put(targets, device),
        temperatures=_put(temperatures, device, dtype) if tempered else None,
        sequence=_put(sequence, device),
        sampling_logprobs=sampling_logprobs,
        advantages=advantages,
        weights=weights,
    )


def _put(array: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)


def pass_logprobs(
    decoder: PackedDecoder, batch: PackedPass, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return (N,) fp32 logprobs of the sampled tokens and, where asked for, entropies of their distributions."""
    hidden = decoder.hidden_packed(batch.input_ids, batch.positions, batch.cu_seqlens)
    hidden = hidden.index_select(0, batch.predicts)
    targets, temperatures = batch.targets, batch.temperatures
    rows = max(1, LOGITS_AT_ONCE // _vocabulary(decoder))
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
