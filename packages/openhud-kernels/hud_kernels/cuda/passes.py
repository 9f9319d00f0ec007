"""Training passes on a CUDA GPU: attention without padding, and recomputation that keeps attention's output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.training_pass import PlainPasses
from hud.engine.models.attention import AnyPacking
from hud.engine.models.reference_decoder import Layer, PackedLayers, ReferenceDecoder
from hud_kernels.cuda.varlen_attention import varlen_packing

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)


class CudaPasses(PlainPasses):
    """Passes of a reference decoder on a GPU."""

    def __init__(self, decoder: ReferenceDecoder) -> None:
        super().__init__(decoder)
        self._reference = decoder

    def hidden(self, batch: PackedPass, rows: Tensor) -> Tensor:
        return self._reference.hidden_packed(
            batch.input_ids, batch.positions, batch.cu_seqlens, batch.prefixes, rows, CUDA
        )


class CudaLayers(PackedLayers):
    """The reference's layers; recomputed ones keep attention's output, the costliest to compute again."""

    def packing(
        self, decoder: ReferenceDecoder, cu_seqlens: Tensor, prefixes: Tensor | None
    ) -> AnyPacking:
        varlen = varlen_packing(cu_seqlens, prefixes, decoder.dtype, decoder.config.head_dim)
        return varlen or super().packing(decoder, cu_seqlens, prefixes)

    def recomputed(self, layer: Layer) -> Callable[..., Tensor]:
        contexts = partial(create_selective_checkpoint_contexts, kept_operations())
        return partial(checkpoint, layer.packed, use_reentrant=False, context_fn=contexts)


CUDA = CudaLayers()


def kept_operations() -> list[Any]:
    """Return the operations whose results recomputation keeps."""
    operations = [getattr(torch.ops.aten, name).default for name in _ATTENTION]
    if hasattr(torch.ops.torch_attn, "_varlen_attn"):  # Once it is imported.
        operations.append(torch.ops.torch_attn._varlen_attn.default)
    return operations
