"""A large decoder's pass over new tokens on a CPU: matrix products, and one kernel for what is between two of them.

It rounds where the reference decoder rounds: in bfloat16 both give the same within the order of a sum.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from hud.engine.models.reference_decoder import Layer, ReferenceDecoder, RMSNorm
from hud_kernels.cpu.layer_kernels import kernels_for
from hud_kernels.cpu.packed_products import DecoderProducts
from hud_kernels.cpu.paged_cache import Norms, PagedCache
from hud_kernels.cpu.team import run

ELEMENTS = 1 << 15
"""Elements of rows that one thread computes before another one is worth its start."""


def hidden_fused(
    decoder: ReferenceDecoder,
    products: DecoderProducts,
    input_ids: Tensor,
    positions: Tensor,
    cache: PagedCache,
) -> Tensor:
    """Return what `decoder.hidden_cached` returns for new tokens (N,) under `torch.inference_mode`."""
    kernels, inner = kernels_for(decoder.dtype), decoder.config.intermediate_size
    cos, sin = decoder._angles(positions)
    x: Tensor = decoder.model.embed_tokens(input_ids)
    added: Tensor | None = None
    for number, (layer, product) in enumerate(
        zip(decoder.model.layers, products.layers, strict=True)
    ):
        assert isinstance(layer, Layer)
        attention = layer.self_attn
        norms: Norms | None = None
        if attention.normalized:
            queries, keys = attention.q_norm, attention.k_norm
            norms = queries.weight, keys.weight, epsilon_of(queries.eps)
        projected = product.projections(add_norm(x, added, layer.input_layernorm))
        q = cache.place(number, projected, cos, sin, norms)
        attended = product.output(cache.attend(number, q))
        both = product.gates_ups(add_norm(x, attended, layer.post_attention_layernorm))
        gated = both.new_empty(len(both), inner)
        halves = both.chunk(2, dim=1)
        run(kernels.gate, both.numel() // ELEMENTS, gated, *halves, *gated.shape, both.shape[1])
        added = product.down(gated)
    return add_norm(x, added, decoder.model.norm)


def add_norm(x: Tensor, added: Tensor | None, norm: RMSNorm) -> Tensor:
    """Add to x (N, H), in place, and return the norm of the sum; None adds nothing."""
    out = torch.empty_like(x)
    addend, epsilon = 0 if added is None else added, epsilon_of(norm.eps)
    arguments = out, x, addend, norm.weight, epsilon, *x.shape
    run(kernels_for(x.dtype).norm, x.numel() // ELEMENTS, *arguments)
    return out


@cache
def epsilon_of(epsilon: float) -> Tensor:
    """Return an epsilon (1,) where kernels read it."""
    return torch.tensor([epsilon])
