"""The decoder on a CPU: training passes of small fp32 layers on one core run in compiled code.

Results are the reference decoder's up to the rounding of fp32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hud.engine.attention import AnyPacking, chosen
from hud.engine.config import DecoderConfig
from hud.engine.cpu.chunked_layers import LARGEST, FeedForward, Heads, Projection
from hud.engine.cpu.packed_attention import packing_of
from hud.engine.decoder import Attention, Decoder, Layer, RMSNorm


class CpuLayer(Layer):
    """A layer whose packed passes are computed in chunks of rows, where it is small, fp32, without adapters and on one thread."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        widest = max(config.intermediate_size, config.num_attention_heads * config.head_dim)
        unbiased = not config.output_bias and not config.mlp_bias
        self._small = config.hidden_size * widest <= LARGEST and unbiased

    def packed(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        packing: AnyPacking,
        rows: Tensor | None = None,
    ) -> Tensor:
        if not self._in_chunks(x):
            return super().packed(x, cos, sin, packing, rows)
        q, k, v = _projected(self.self_attn, x, self.input_layernorm, cos, sin)
        norm, mlp = self.post_attention_layernorm, self.mlp
        output: Tensor = FeedForward.apply(  # type: ignore[no-untyped-call]
            chosen(rows, x),
            packing.attend(q, k, v, rows),
            scale_of(norm),
            squared_epsilon(norm),
            self.self_attn.o_proj.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )
        return output

    def _in_chunks(self, x: Tensor) -> bool:
        """Return whether the layer is faster in chunks."""
        projections = (*self.self_attn.children(), *self.mlp.children())
        plain = (type(module) in (nn.Linear, RMSNorm) for module in projections)
        return self._small and by_one_core(x) and all(plain)


class CpuDecoder(Decoder):
    """A decoder of `CpuLayer`s."""

    layer_type = CpuLayer

    def packing(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> AnyPacking:
        one_core = by_one_core(self.model.embed_tokens.weight)
        head = self.config.head_dim if one_core else None
        return packing_of(cu_seqlens, prefixes, one_core_head=head)


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
        *(projection.weight for projection in projections),
    )
    return projected
