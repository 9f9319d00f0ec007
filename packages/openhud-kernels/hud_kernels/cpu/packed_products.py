"""Matrix products of a large decoder's layers on a CPU, with weights that are laid out for its matrix instructions.

torch lays a weight out again in each product, which for few rows takes longer than the product. Here it is done once after each
change of the weights, and the layers of one input are one product. The copies take as much memory as the weights.

What cannot be laid out is computed by the layers themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hud.engine.lora import LoraLinear
from hud.engine.models.precision import WIDEST_BYTES, slower_than_fp32
from hud.engine.models.reference_decoder import Layer, ReferenceDecoder

ROWS = 64
"""Rows for which weights are laid out; others are computed with, too."""


class Product:
    """Linear layers of one input, as one product."""

    def __init__(self, layers: Sequence[nn.Module], *, packed: bool) -> None:
        self._layers = layers
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._low: tuple[Tensor, Tensor, float] | None = None
        if packed and all(type(_base(layer)) is nn.Linear for layer in layers):
            self._lay_out()

    def _lay_out(self) -> None:
        bases = [_base(layer) for layer in self._layers]
        adapted = [
            layer for layer in self._layers if isinstance(layer, LoraLinear) and layer.enabled
        ]
        if len({layer.scale for layer in adapted}) > 1:
            return
        weight = torch.cat([base.weight for base in bases])
        self._weight = _laid_out(weight)
        if any(base.bias is not None for base in bases):
            self._bias = torch.cat(
                [
                    base.weight.new_zeros(len(base.weight)) if base.bias is None else base.bias
                    for base in bases
                ]
            )
        if adapted:
            self._low = self._low_rank(adapted, [len(base.weight) for base in bases])

    def _low_rank(
        self, adapted: Sequence[LoraLinear], widths: Sequence[int]
    ) -> tuple[Tensor, Tensor, float]:
        """Return A of all adapters (R, in), their B in an adapter's own columns and rows (R, out), and their scale."""
        dtype = adapted[0].base.weight.dtype
        first = torch.cat([layer.lora_A.to(dtype) for layer in adapted])
        second = first.new_zeros(len(first), sum(widths))
        rank = 0
        for layer, (start, end) in zip(
            self._layers, pairwise(accumulate(widths, initial=0)), strict=True
        ):
            if layer in adapted:
                assert isinstance(layer, LoraLinear)
                second[rank : rank + layer.rank, start:end] = layer.lora_B.to(dtype).T
                rank += layer.rank
        return first, second, adapted[0].scale

    def __call__(self, x: Tensor) -> Tensor:
        """Return the layers' outputs (N, M), side by side, for x (N, K)."""
        if self._weight is None:
            outputs = [layer(x) for layer in self._layers]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        y = _multiplied(x, self._weight, self._bias)
        if self._low is not None:
            first, second, scale = self._low
            y.addmm_(F.linear(x, first), second, alpha=scale)
        return y


class LayerProducts:
    """The four products of a layer."""

    def __init__(self, layer: Layer, *, packed: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.projections = Product(
            (attention.q_proj, attention.k_proj, attention.v_proj), packed=packed
        )
        self.output = Product((attention.o_proj,), packed=packed)
        self.gates_ups = Product((mlp.gate_proj, mlp.up_proj), packed=packed)
        self.down = Product((mlp.down_proj,), packed=packed)


class DecoderProducts:
    """The products of a decoder, with its weights as they are now."""

    @torch.no_grad()
    def __init__(self, decoder: ReferenceDecoder) -> None:
        packed = lays_out(decoder)
        self.layers = [
            LayerProducts(layer, packed=packed)
            for layer in decoder.model.layers
            if isinstance(layer, Layer)
        ]
        self._decoder = decoder
        tied = decoder.config.tie_word_embeddings
        head = decoder.model.embed_tokens if tied else decoder.lm_head
        self._head: Tensor | None = None
        if packed and type(head) in (nn.Embedding, nn.Linear):
            self._head = _laid_out(head.weight.detach())

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of hidden states (N, H)."""
        if self._head is None:
            return self._decoder.logits(hidden)
        return _multiplied(hidden, self._head)


def lays_out(decoder: ReferenceDecoder) -> bool:
    """Return whether a decoder's weights are copied: in bfloat16, at most `WIDEST_BYTES`, where matrix instructions multiply them."""
    if decoder.dtype != torch.bfloat16 or slower_than_fp32(torch.bfloat16):
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return sum(parameter.nbytes for parameter in decoder.parameters()) <= WIDEST_BYTES


def _laid_out(weight: Tensor) -> Tensor:
    """Return a copy of a weight (M, K) for `_multiplied`."""
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
    return copy


def _multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x (N, K) times a weight that is laid out, plus a bias (M,)."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _base(layer: nn.Module) -> Any:
    return layer.base if isinstance(layer, LoraLinear) else layer
