"""Training passes on a CPU: small fp32 layers on one core run in chunks of rows, others with a kernel between two products.

Results are those of the plain passes up to the rounding of the dtype.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.training_pass import PlainPasses
from hud.engine.lora import LoraLinear
from hud.engine.models.attention import AnyPacking, chosen
from hud.engine.models.reference_decoder import (
    Attention,
    Layer,
    PackedLayers,
    ReferenceDecoder,
    RMSNorm,
)
from hud_kernels.cpu import training_layers
from hud_kernels.cpu.chunked_layers import LARGEST, FeedForward, Heads, Projection
from hud_kernels.cpu.low_rank import LowRank, weight_of
from hud_kernels.cpu.packed_attention import packing_of
from hud_kernels.cpu.row_numbers import KINDS


class CpuPasses(PlainPasses):
    """Passes of a reference decoder on a CPU."""

    def __init__(self, decoder: ReferenceDecoder) -> None:
        super().__init__(decoder)
        self._reference = decoder
        self._layers = CpuLayers(decoder.config)

    def hidden(self, batch: PackedPass, rows: Tensor) -> Tensor:
        return self._reference.hidden_packed(
            batch.input_ids, batch.positions, batch.cu_seqlens, batch.prefixes, rows, self._layers
        )


class CpuLayers(PackedLayers):
    """Layers in chunks of rows where they are small, fp32 and on one thread; other ones by `training_layers`."""

    def __init__(self, config: DecoderConfig) -> None:
        widest = max(config.intermediate_size, config.num_attention_heads * config.head_dim)
        unbiased = not config.output_bias and not config.mlp_bias
        self._small = config.hidden_size * widest <= LARGEST and unbiased

    def packing(
        self, decoder: ReferenceDecoder, cu_seqlens: Tensor, prefixes: Tensor | None
    ) -> AnyPacking:
        weight = decoder.model.embed_tokens.weight
        return packing_of(
            cu_seqlens,
            prefixes,
            one_core_head=decoder.config.head_dim if by_one_core(weight) else None,
            half=weight.dtype.itemsize == 2,
        )

    def compute(
        self,
        layer: Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        packing: AnyPacking,
        rows: Tensor | None,
    ) -> Tensor:
        if x.dtype not in KINDS or not _is_plain(layer):
            return super().compute(layer, x, cos, sin, packing, rows)
        if not self._small or not by_one_core(x):
            return training_layers.compute(layer, x, cos, sin, packing, rows)
        q, k, v = _projected(layer.self_attn, x, layer.input_layernorm, cos, sin)
        norm, mlp, x = layer.post_attention_layernorm, layer.mlp, chosen(rows, x)
        inputs = ([layer.self_attn.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj])
        terms = tuple(LowRank(projections, len(x)) for projections in inputs)
        output: Tensor = FeedForward.apply(  # type: ignore[no-untyped-call]
            x,
            packing.attend(q, k, v, rows),
            scale_of(norm),
            squared_epsilon(norm),
            terms,
            *(weight_of(projection) for projections in inputs for projection in projections),
            *(tensor for group in terms for tensor in group.tensors),
        )
        return output


def _is_plain(layer: Layer) -> bool:
    """Return whether a layer's parts are norms, and projections with or without an adapter."""
    parts = (*layer.self_attn.children(), *layer.mlp.children())
    bases = (part.base if type(part) is LoraLinear else part for part in parts)
    return all(type(base) in (nn.Linear, RMSNorm) for base in bases)


def by_one_core(x: Tensor) -> bool:
    """Return whether x (...) is fp32 on a CPU that computes on one thread, as compiled code needs it."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and torch.get_num_threads() == 1


def squared_epsilon(norm: RMSNorm) -> float:
    """H * eps: the norm's epsilon for a sum of squares (not a mean)."""
    return norm.weight.shape[0] * norm.eps


def scale_of(norm: RMSNorm) -> Tensor:
    """Return weight * sqrt(H), (H,): the factor of rows of length 1."""
    return norm.weight * math.sqrt(norm.weight.shape[0])


def heads_of(attention: Attention) -> Heads:
    """Return the shape of a layer's heads for compiled code."""
    epsilon = squared_epsilon(attention.q_norm) if attention.normalized else -1.0
    return Heads(attention.heads, attention.kv_heads, attention.head_dim, epsilon)


def heads_scale(attention: Attention) -> Tensor:
    """Return the factors of queries and keys of length 1, (heads + kv_heads, D); ones without norms."""
    if not attention.normalized:
        return torch.ones(attention.heads + attention.kv_heads, attention.head_dim)
    norms = ((attention.q_norm, attention.heads), (attention.k_norm, attention.kv_heads))
    return torch.cat([scale_of(norm).expand(count, -1) for norm, count in norms])


def _projected(
    attention: Attention, x: Tensor, norm: RMSNorm, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of what `norm` makes of x (N, H), computed in chunks."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None
    if attention.q_proj.bias is not None:
        bias = torch.cat([projection.bias for projection in projections])
    terms = LowRank(projections, len(x))
    once = attention.head_dim // 2  # Both halves of a head turn by the same angles.
    projected: tuple[Tensor, Tensor, Tensor] = Projection.apply(  # type: ignore[no-untyped-call]
        x,
        scale_of(norm),
        squared_epsilon(norm),
        bias,
        heads_scale(attention),
        cos[:, 0, :once].contiguous().numpy(),
        sin[:, 0, :once].contiguous().numpy(),
        heads_of(attention),
        terms,
        *(weight_of(projection) for projection in projections),
        *terms.tensors,
    )
    return projected
