"""What small models are sampled with on a CPU: a copy of their weights, laid out for decode steps.

A decode step of a small model is many tiny operations: starting them costs as much as computing them, and products of few
rows with matrices as checkpoints store them are slower than with their transposes. Hence here

- the projections to queries, keys and values are one product, and so are gate and up; each matrix is stored transposed;
- the scale of a norm, and the root of its size, are part of the matrix behind it: x / hypot(|x|, √(n ε)) is left of
  the root mean square norm over n numbers;
- adapters (LoRA) are added to the weights that they adapt;
- the dimensions of queries and keys are ordered such that the two that a rotary position turns together are neighbours, one
  complex number. Scores do not depend on the order, as it is the same for both.

The results are the decoder's own up to the rounding of fp32. What is laid out is a copy: `refresh` makes it anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hud.engine.decoder import Decoder, Layer
from hud.engine.lora import LoraLinear
from hud.engine.threads import SMALL_PARAMETERS

if TYPE_CHECKING:
    from hud.engine.folder import AnyDecoder
    from hud.engine.kvcache import KVCache


@dataclass(frozen=True)
class _Product:
    """x ↦ x · matrix + bias."""

    matrix: Tensor
    """(in, out)."""
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.matrix)
        return torch.addmm(self.bias, x, self.matrix)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return residual + x · matrix + bias."""
        added = torch.addmm(residual, x, self.matrix)
        return added if self.bias is None else added.add_(self.bias)


@dataclass(frozen=True)
class _Layer:
    """One layer, laid out."""

    queries_keys_values: _Product
    heads_scale: Tensor | None
    """(heads + kv_heads, D): what the norms of queries and keys scale by; None where they are not normalized."""
    output: _Product
    gate_up: _Product
    down: _Product


class FusedDecoder:
    """Computes new tokens over a key-value cache, as a `Decoder` of fp32 weights does."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self.device, self.dtype = decoder.device, decoder.dtype
        config = self.config
        half = config.head_dim // 2
        self._pairs = torch.stack((torch.arange(half), torch.arange(half) + half), dim=1).flatten()
        """(D,): the dimension of a head that stands at each place."""
        self._rotary = decoder.rotary
        self._queries = config.num_attention_heads
        self._turned = config.num_attention_heads + config.num_key_value_heads
        self._small = torch.tensor(math.sqrt(config.hidden_size * config.rms_norm_eps))
        self._small_of_head = torch.tensor(math.sqrt(config.head_dim * config.rms_norm_eps))
        self.refresh(decoder)

    @torch.no_grad()
    def refresh(self, decoder: Decoder) -> None:
        """Lay out a decoder's weights as they are now. Nothing may be computing meanwhile."""
        self._embedding = decoder.model.embed_tokens.weight.detach().clone()
        self._layers = []
        for layer in decoder.model.layers:
            assert isinstance(layer, Layer)
            self._layers.append(self._laid_out(layer))
        tied = self.config.tie_word_embeddings
        head = decoder.model.embed_tokens if tied else decoder.lm_head
        self._head = _product([(head.weight, None)], decoder.model.norm.weight)

    def hidden_cached(self, input_ids: Tensor, positions: Tensor, cache: KVCache) -> Tensor:
        """Return the last hidden states (N, H), not scaled, of new tokens, where `cache` says which and after what."""
        angles = positions[:, None, None].float() * self._rotary
        turns = torch.polar(torch.ones_like(angles), angles)
        x = F.embedding(input_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            x = self._through(layer, index, x, turns, cache)
        return x / _length(x, self._small)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of what `hidden_cached` returned (N, H)."""
        return self._head(hidden)

    def _through(
        self, layer: _Layer, index: int, x: Tensor, turns: Tensor, cache: KVCache
    ) -> Tensor:
        """Return a layer's output for x (N, H), whose keys and values the cache then holds; `turns` is (N, 1, D / 2)."""
        count, size = len(x), self.config.head_dim
        projected = layer.queries_keys_values(x / _length(x, self._small))
        projected = projected.view(count, -1, size)
        turned = projected[:, : self._turned]
        if layer.heads_scale is not None:
            turned = (turned / _length(turned, self._small_of_head)).mul_(layer.heads_scale)
        pairs = torch.view_as_complex(turned.view(count, -1, size // 2, 2))
        turned = torch.view_as_real(pairs * turns).flatten(-2)
        cache.write(index, turned[:, self._queries :], projected[:, self._turned :])
        x = layer.output.added_to(x, cache.attend(index, turned[:, : self._queries]))
        gate, up = layer.gate_up(x / _length(x, self._small)).chunk(2, dim=-1)
        return layer.down.added_to(x, F.silu(gate).mul_(up))

    def _laid_out(self, layer: Layer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        queries, keys = (
            self._paired(*_weight_and_bias(one)) for one in (attention.q_proj, attention.k_proj)
        )
        scale = None
        if attention.normalized:
            norms = (attention.q_norm, attention.heads), (attention.k_norm, attention.kv_heads)
            rows = [norm.weight[self._pairs].expand(count, -1) for norm, count in norms]
            scale = torch.cat(rows) * math.sqrt(self.config.head_dim)
        return _Layer(
            _product(
                [queries, keys, _weight_and_bias(attention.v_proj)], layer.input_layernorm.weight
            ),
            scale,
            _product([_weight_and_bias(attention.o_proj)]),
            _product(
                [_weight_and_bias(mlp.gate_proj), _weight_and_bias(mlp.up_proj)],
                layer.post_attention_layernorm.weight,
            ),
            _product([_weight_and_bias(mlp.down_proj)]),
        )

    def _paired(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return a projection to heads with the dimensions of each head in the order of `_pairs`."""
        size = self.config.head_dim
        ordered = weight.view(-1, size, weight.shape[-1])[:, self._pairs].flatten(0, 1)
        return ordered, None if bias is None else bias.view(-1, size)[:, self._pairs].flatten()


def fused(decoder: AnyDecoder) -> FusedDecoder | None:
    """Return what a decoder is sampled with, or None where it is sampled with as it is.

    That is on a GPU, which has kernels of its own; of weights in less than fp32, which would round otherwise; and of large
    models, whose copy would take as much memory again and whose steps are few and large operations.
    """
    if not isinstance(decoder, Decoder) or decoder.device.type != "cpu":
        return None
    if any(parameter.dtype != torch.float32 for parameter in decoder.parameters()):
        return None
    small = sum(parameter.numel() for parameter in decoder.parameters()) <= SMALL_PARAMETERS
    return FusedDecoder(decoder) if small else None


def _length(x: Tensor, small: Tensor) -> Tensor:
    """Return the length of x along its last dimension, never 0."""
    return torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), small)


def _weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight (out, in), with what an adapter adds, and the bias of a linear layer."""
    if isinstance(module, LoraLinear):
        return module.merged_weight(), module.base.bias
    assert isinstance(module, nn.Linear)
    return module.weight, module.bias


def _product(parts: list[tuple[Tensor, Tensor | None]], scale: Tensor | None = None) -> _Product:
    """Return the product with several layers at once, behind a norm that scales by `scale` (in,)."""
    matrix = torch.cat([weight for weight, _ in parts])
    if scale is not None:
        matrix = matrix * (scale * math.sqrt(len(scale)))
    biases = [bias for _, bias in parts if bias is not None]
    return _Product(matrix.T.contiguous(), torch.cat(biases) if biases else None)
