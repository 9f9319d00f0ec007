"""Attention of packed sequences without padding, by the variable-length FlashAttention of torch.

A token that is packed costs what it attends to, and nothing is padded or masked, however lengths differ. A sequence that
continues others attends to theirs and its own tokens as one row of keys, copied behind one another: causal attention is
aligned to the last key, so that its first query sees all prefixes.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.util import find_spec
from itertools import pairwise

import torch
from torch import Tensor

from hud.engine.models.attention import AnyPacking, chains, chosen

CAUSAL = (-1, 0)
"""A window of any number of tokens before, and none after."""


class VarlenPacking:
    """Packed sequences on a GPU, in bf16 or fp16; see `attention.Packing` and `attention.SharedPacking`."""

    def __init__(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> None:
        self._starts = cu_seqlens.to(torch.int32)
        # The host needs the longest lengths; one copy for all.
        bounds = cu_seqlens.tolist()
        lengths = [end - start for start, end in pairwise(bounds)]
        self._longest = self._longest_seen = max(lengths, default=0)
        self._seen: Tensor | None = None
        """(K,) int64: the tokens whose keys each sequence attends to, end to end; None: its own alone."""
        self._seen_starts = self._starts
        if prefixes is None:
            return
        tokens = [torch.arange(start, end) for start, end in pairwise(bounds)]
        keys = [torch.cat([tokens[row] for row in chain]) for chain in chains(prefixes.tolist())]
        device = cu_seqlens.device
        self._seen = torch.cat(keys).to(device)
        seen = [len(row) for row in keys]
        ends = torch.tensor([0, *seen]).cumsum(0)
        self._seen_starts = ends.to(device=device, dtype=torch.int32)
        self._longest_seen = max(seen)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None = None) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        # A prefix receives the summed gradients of its continuations.
        k, v = chosen(self._seen, k), chosen(self._seen, v)
        attended = varlen_attn(
            q,
            k,
            v,
            self._starts,
            self._seen_starts,
            self._longest,
            self._longest_seen,
            window_size=CAUSAL,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        assert isinstance(attended, Tensor)
        return chosen(rows, attended.flatten(1))


def varlen_packing(
    cu_seqlens: Tensor, prefixes: Tensor | None, dtype: torch.dtype, head_dim: int
) -> AnyPacking | None:
    """Return the packing of sequences on the device of `cu_seqlens`; None where FlashAttention does not compute it."""
    fits = dtype in (torch.bfloat16, torch.float16) and head_dim % 8 == 0 and head_dim <= 256
    if cu_seqlens.device.type != "cuda" or not fits or not _flash(cu_seqlens.device.index):
        return None
    return VarlenPacking(cu_seqlens, prefixes)


@cache
def _flash(device: int | None) -> bool:
    """Return whether torch has variable-length attention with grouped queries, and the GPU FlashAttention (Ampere on)."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    parameters = inspect.signature(varlen_attn).parameters
    if not {"window_size", "enable_gqa"} <= parameters.keys():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
