"""Decoders with attention and gated delta rule layers, natively: Qwen3.5, 3.6 and 3.8, dense and with experts, and Qwen3-Next.

Modules and weights are those of `transformers`. Attention is that of packed sequences or of the key-value cache, as in
`TransformersDecoder`; the forward methods of gated delta rule layers are replaced, and carry their states likewise: from a
sequence to those that continue it, or in the cache.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.engine.decoder import AttentionCache
from hud.engine.foreign.transformers_decoder import TransformersDecoder
from hud.engine.models.gated_delta import chunked, convolved, decays, unit
from hud.engine.models.state_packing import StatePacking
from hud.errors import UsageError


class LayerStates(Protocol):
    """States of the sequences of a pass."""

    def convolve(self, layer: int, x: Tensor, weight: Tensor) -> Tensor:
        """Return the causal convolution (T, D) of a layer's inputs x (T, D), by `weight` (D, kernel)."""

    def gated_delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        """Return a layer's outputs (T, heads, V); arguments as those of `models.gated_delta.chunked`."""


class PackedStates:
    """States of packed sequences, which begin with none or continue another one."""

    def __init__(self, packing: StatePacking, memory: int) -> None:
        self.packing, self.memory = packing, memory

    def convolve(self, layer: int, x: Tensor, weight: Tensor) -> Tensor:
        del layer
        none = x.new_zeros(self.packing.sequences, self.memory, x.shape[1])
        return convolved(x, weight, self.packing, none)

    def gated_delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        del layer
        return chunked(q, k, v, g, beta, self.packing)[0]


class HybridDecoder(TransformersDecoder):
    """A `transformers` model of attention and gated delta rule layers behind the port of decoders."""

    def __init__(self, config: DecoderConfig, causal: Any) -> None:
        super().__init__(config, causal)
        layers = [module for module in causal.modules() if _is_gated_delta(module)]
        shape = config.recurrent
        if shape is None or len(layers) != shape.layers:
            raise UsageError(f"{type(causal).__name__} has recurrent layers of another kind.")
        for place, layer in enumerate(layers):
            layer.forward = _Forward(layer, place)
        recurrent = {layer.layer_idx for layer in layers}
        others = [layer for layer in range(config.num_hidden_layers) if layer not in recurrent]
        self.cache_places = {layer: place for place, layer in enumerate(others)}

    def packed_settings(self, cu_seqlens: Tensor, prefixes: Tensor | None) -> dict[str, Any]:
        """Pass the states of the packed sequences on as `LayerStates`."""
        assert self.config.recurrent is not None
        memory, bounds = self.config.recurrent.memory, cu_seqlens.tolist()
        packing = StatePacking(
            bounds[:-1],
            [end - start for start, end in pairwise(bounds)],
            bounds[-1],
            memory,
            cu_seqlens.device,
            None if prefixes is None else prefixes.tolist(),
        )
        return {"hud_states": PackedStates(packing, memory)}

    def cache_settings(self, cache: AttentionCache) -> dict[str, Any]:
        """Pass the cache on as `LayerStates`, which that of `sample.hybrid_runner.HybridRunner` has too."""
        return {"hud_states": cache}


def _is_gated_delta(module: nn.Module) -> bool:
    """Return whether a layer is a gated delta rule with the parameters of Qwen3.5's or of Qwen3-Next's."""
    common = all(
        hasattr(module, name) for name in ("conv1d", "A_log", "dt_bias", "norm", "out_proj")
    )
    return common and (hasattr(module, "in_proj_qkv") or hasattr(module, "in_proj_qkvz"))


class _Forward:
    """The forward method of a gated delta rule layer; a copied model has a copy of its own."""

    def __init__(self, layer: nn.Module, place: int) -> None:
        """`place`: number of the layer among those with a state."""
        self.layer, self.place = layer, place

    def __call__(
        self, hidden_states: Tensor, *, hud_states: LayerStates | None = None, **settings: Any
    ) -> Tensor:
        layer: Any = self.layer
        output: Tensor
        if hud_states is None:
            output = type(layer).forward(layer, hidden_states=hidden_states, **settings)
            return output
        mixed, z, b, a = self._projected(hidden_states)
        mixed = hud_states.convolve(self.place, mixed, layer.conv1d.weight.squeeze(1))
        widths = [layer.key_dim, layer.key_dim, layer.value_dim]
        q, k, v = torch.split(F.silu(mixed), widths, -1)
        q, k = (x.reshape(len(mixed), -1, layer.head_k_dim) for x in (q, k))
        q, k, v = *unit(q, k), v.reshape(len(mixed), -1, layer.head_v_dim)
        g = decays(a, layer.A_log, layer.dt_bias)
        attended = hud_states.gated_delta(self.place, q, k, v, g, b.sigmoid())
        attended = layer.norm(attended.to(z.dtype).flatten(0, 1), z.reshape(-1, layer.head_v_dim))
        output = layer.out_proj(attended.view(1, len(mixed), -1))
        return output

    def _projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the convolution's inputs (T, D), gates of the output (T, heads * V), and inputs of β and of the decay (T, heads)."""
        layer: Any = self.layer
        if hasattr(layer, "in_proj_qkv"):
            names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            mixed, z, b, a = (getattr(layer, name)(hidden_states)[0] for name in names)
            return mixed, z, b, a
        # Qwen3-Next interleaves them by key head.
        q, k, v, z, b, a = layer.fix_query_key_value_ordering(
            layer.in_proj_qkvz(hidden_states), layer.in_proj_ba(hidden_states)
        )
        mixed = torch.cat([part[0].flatten(1) for part in (q, k, v)], -1)
        return mixed, z[0].flatten(1), b[0], a[0]
