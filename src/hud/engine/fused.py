"""What small models are sampled with on a CPU: a copy of their weights, laid out for decode steps.

A decode step of a small model is many tiny operations: starting them costs as much as computing them, and products of few
rows with matrices as checkpoints store them are slower than with their transposes. Hence here

- the projections to queries, keys and values are one product, and so are gate and up; each matrix is stored transposed;
- the scale of a norm, and the root of its size, are part of the matrix behind it: x / √(|x|² + n ε) is left of the root
  mean square norm over n numbers;
- adapters (LoRA) are added to the weights that they adapt;
- what is between the products is one call each, of code compiled for it (`kernels`).

The results are the decoder's own up to the rounding of fp32. What is laid out is a copy: `refresh` makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hud.engine.decoder import Decoder, Layer, RMSNorm
from hud.engine.kernels import Floats, Integers, gate, normalize
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

    def into(self, out: Tensor, x: Tensor) -> None:
        """Write x · matrix + bias."""
        if self.bias is None:
            torch.mm(x, self.matrix, out=out)
        else:
            torch.addmm(self.bias, x, self.matrix, out=out)

    def added_to(self, residual: Tensor, x: Tensor) -> None:
        """Add x · matrix + bias."""
        residual.addmm_(x, self.matrix)
        if self.bias is not None:
            residual.add_(self.bias)


@dataclass(frozen=True)
class _Layer:
    """One layer, laid out."""

    queries_keys_values: _Product
    heads_scale: Floats
    """(heads + kv_heads, D): what the norms of queries and keys scale by, where they are normalized."""
    output: _Product
    gate_up: _Product
    down: _Product


class FusedDecoder:
    """Computes new tokens over a key-value cache, as a `Decoder` of fp32 weights does."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self.device, self.dtype = decoder.device, decoder.dtype
        self._rotary = decoder.rotary
        self._small = decoder.model.norm.small
        first = decoder.model.layers[0]
        assert isinstance(first, Layer)
        self._heads = first.self_attn.shape
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
        self._head = _product([head], decoder.model.norm)

    def hidden_cached(self, input_ids: Tensor, positions: Tensor, cache: KVCache) -> Tensor:
        """Return the last hidden states (N, H), not scaled, of new tokens, where `cache` says which and after what."""
        return self._computed(input_ids, positions, cache, cache.places.numpy(), cache.attend)

    def run(
        self,
        ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        cache: KVCache,
    ) -> Tensor:
        """Return what `hidden_cached` does for one new token each of some rows, whose pages and lengths these are."""
        widest = max(map(len, tables))
        pages = np.array([[*table, *[0] * (widest - len(table))] for table in tables])
        start, size = np.array(starts), cache.size.page_tokens
        page = pages[np.arange(len(start)), start // size]
        heads = np.arange(self._heads.kv_heads)
        places = (page[:, None] * len(heads) + heads) * size + (start % size)[:, None]
        lengths = start + 1

        def attend(layer: int, queries: Tensor) -> Tensor:
            attended = torch.empty(len(queries), queries.shape[1] * queries.shape[2])
            self._heads.kernels.attend(
                queries.numpy(),
                cache.keys[layer].numpy(),
                cache.values[layer].numpy(),
                pages,
                lengths,
                attended.numpy(),
            )
            return attended

        return self._computed(torch.tensor(ids), torch.from_numpy(start), cache, places, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of what was returned for the last hidden states (N, H)."""
        logits = torch.empty(len(hidden), len(self._embedding))
        self._head.into(logits, hidden)
        return logits

    def _computed(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        places: Integers,
        attend: Callable[[int, Tensor], Tensor],
    ) -> Tensor:
        """Return the last hidden states (N, H), not scaled; keys and values are in the cache then, at `places` (N, K)."""
        heads, count = self._heads, len(ids)
        angles = torch.outer(positions.float(), self._rotary)
        cos, sin = angles.cos().numpy(), angles.sin().numpy()
        x = F.embedding(ids, self._embedding)
        normed = torch.empty_like(x)
        queries = torch.empty(count, heads.heads, heads.size)
        projected = torch.empty(count, (heads.heads + 2 * heads.kv_heads) * heads.size)
        gate_up = torch.empty(count, 2 * self.config.intermediate_size)
        gated = torch.empty(count, self.config.intermediate_size)
        for index, layer in enumerate(self._layers):
            normalize(x.numpy(), self._small, normed.numpy())
            layer.queries_keys_values.into(projected, normed)
            self._heads.kernels.place(
                projected.numpy(),
                layer.heads_scale,
                self._heads.small,
                cos,
                sin,
                cache.keys[index].view(-1, heads.size).numpy(),
                cache.values[index].view(-1, heads.size).numpy(),
                places,
                queries.numpy(),
            )
            layer.output.added_to(x, attend(index, queries))
            normalize(x.numpy(), self._small, normed.numpy())
            layer.gate_up.into(gate_up, normed)
            gate(gate_up.numpy(), gated.numpy())
            layer.down.added_to(x, gated)
        normalize(x.numpy(), self._small, normed.numpy())
        return normed

    def _laid_out(self, layer: Layer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        return _Layer(
            _product(projections, layer.input_layernorm),
            attention.heads_scale().numpy(),
            _product([attention.o_proj]),
            _product([mlp.gate_proj, mlp.up_proj], layer.post_attention_layernorm),
            _product([mlp.down_proj]),
        )


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


def _weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight (out, in), with what an adapter adds, and the bias of a layer."""
    if isinstance(module, LoraLinear):
        return module.merged_weight(), module.base.bias
    assert isinstance(module, nn.Linear | nn.Embedding)
    return module.weight, module.bias if isinstance(module, nn.Linear) else None


def _product(modules: Sequence[nn.Module], norm: RMSNorm | None = None) -> _Product:
    """Return the product with several layers at once, behind a norm."""
    parts = [_weight_and_bias(module) for module in modules]
    weights = [weight for weight, _ in parts]
    joined = torch.cat(weights) if len(weights) > 1 else weights[0]
    matrix = joined.T.clone(memory_format=torch.contiguous_format)
    if norm is not None:
        matrix.mul_(norm.scale[:, None])
    biases = [bias for _, bias in parts if bias is not None]
    return _Product(matrix, torch.cat(biases) if biases else None)
