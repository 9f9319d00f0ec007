"""The decoder that is trained on a CUDA GPU: attention without padding, and recomputation that keeps attention's output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hud.engine.attention import AnyPacking
from hud.engine.cuda.varlen_attention import varlen_packing
from hud.engine.decoder import Decoder, Layer

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


class CudaDecoder(Decoder):
    """The reference decoder; only packed sequences are computed differently."""

    def packing(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> AnyPacking:
        varlen = varlen_packing(cu_seqlens, prefixes, self.dtype, self.config.head_dim)
        return varlen or super().packing(cu_seqlens, prefixes)

    def _packed(self, layer: nn.Module) -> Callable[..., Tensor]:
        """Return what computes a layer; recomputed layers keep attention's output, the costliest to compute again."""
        assert isinstance(layer, Layer)
        if not (self.checkpointed and torch.is_grad_enabled()):
            return layer.packed
        contexts = partial(create_selective_checkpoint_contexts, kept_operations())
        return partial(checkpoint, layer.packed, use_reentrant=False, context_fn=contexts)


def kept_operations() -> list[Any]:
    """Return the operations whose results recomputation keeps."""
    operations = [getattr(torch.ops.aten, name).default for name in _ATTENTION]
    if hasattr(torch.ops.torch_attn, "_varlen_attn"):  # Once it is imported.
        operations.append(torch.ops.torch_attn._varlen_attn.default)
    return operations
