"""The decoder on a CPU: training passes in compiled code where one core computes a small layer, and norms and rotations
with gradients written out elsewhere. Results are the reference decoder's up to the rounding of fp32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hud.engine.attention import AnyPacking, chosen
from hud.engine.config import DecoderConfig
from hud.engine.cpu.chunked_layers import LARGEST, Finished, Heads, Projected
from hud.engine.cpu.norms import normed, normed_rotated
from hud.engine.cpu.packing import OneCore, packing_of
from hud.engine.decoder import Attention, Decoder, Layer, RMSNorm, rotate


class CpuLayer(Layer):
    """A layer whose packed passes are computed in chunks, by one core, where nothing is adapted and all is fp32."""

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
        """See `Layer.packed`."""
        if self._in_chunks(x):
            q, k, v = _projected(self.self_attn, x, self.input_layernorm, cos, sin)
            return self._finish_in_chunks(chosen(rows, x), packing.attend(q, k, v, rows))
        q, k, v = _project(self.self_attn, normed(self.input_layernorm, x), cos, sin)
        return self.finish(chosen(rows, x), packing.attend(q, k, v, rows))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """See `Layer.finish`."""
        x = x + self.self_attn.o_proj(attended)
        output: Tensor = x + self.mlp(normed(self.post_attention_layernorm, x))
        return output

    def _finish_in_chunks(self, x: Tensor, attended: Tensor) -> Tensor:
        norm, mlp = self.post_attention_layernorm, self.mlp
        output: Tensor = Finished.apply(  # type: ignore[no-untyped-call]
            x,
            attended,
            scale_of(norm),
            squared_epsilon(norm),
            self.self_attn.o_proj.weight,
            mlp.gate_proj.weight,
            mlp.up_proj.weight,
            mlp.down_proj.weight,
        )
        return output

    def _in_chunks(self, x: Tensor) -> bool:
        """Return whether the layer is faster in chunks: one thread computes it, it is small, and nothing adapts it."""
        plain = (type(one) is nn.Linear for one in self._projections())
        return self._small and by_one_core(x) and all(plain)

    def _projections(self) -> tuple[nn.Module, ...]:
        attention, mlp = self.self_attn, self.mlp
        of_attention = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        return (*of_attention, mlp.gate_proj, mlp.up_proj, mlp.down_proj)


class CpuDecoder(Decoder):
    """A decoder of `CpuLayer`s."""

    layer_type = CpuLayer

    def packing(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> AnyPacking:
        """See `Decoder.packing`."""
        one_core = by_one_core(self.model.embed_tokens.weight)
        one_core = one_core and OneCore.takes(self.config.head_dim)
        return packing_of(cu_seqlens, prefixes, on_one_core=one_core)


def by_one_core(x: Tensor) -> bool:
    """Return whether one core alone computes with numbers such as x, for which there is compiled code."""
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
    return torch.cat([scale_of(one).expand(count, -1) for one, count in norms])


def _project(
    attention: Attention, x: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See `Attention.project`."""
    q = attention.q_proj(x).view(-1, attention.heads, attention.head_dim)
    k = attention.k_proj(x).view(-1, attention.kv_heads, attention.head_dim)
    v = attention.v_proj(x).view(-1, attention.kv_heads, attention.head_dim)
    if attention.normalized:
        q = normed_rotated(attention.q_norm, q, cos, sin)
        return q, normed_rotated(attention.k_norm, k, cos, sin), v
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def _projected(
    attention: Attention, x: Tensor, norm: RMSNorm, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of what `norm` makes of x (N, H), computed in chunks."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None
    if attention.q_proj.bias is not None:
        bias = torch.cat([one.bias for one in projections])
    once = attention.head_dim // 2  # Both halves of a head turn by the same angles.
    found: tuple[Tensor, Tensor, Tensor] = Projected.apply(  # type: ignore[no-untyped-call]
        x,
        scale_of(norm),
        squared_epsilon(norm),
        bias,
        heads_scale(attention),
        cos[:, 0, :once].contiguous().numpy(),
        sin[:, 0, :once].contiguous().numpy(),
        heads_of(attention),
        *(one.weight for one in projections),
    )
    return found
