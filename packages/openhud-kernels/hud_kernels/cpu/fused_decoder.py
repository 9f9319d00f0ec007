"""The fused decoder: a copy of a small model's weights, laid out for one call of compiled code, for sampling on a CPU.

A forward pass of a small model over a few tokens is many tiny operations, and starting them costs more than computing them.
Hence here

- the projections to queries, keys and values are one product, and so are gate and up;
- the scale of a norm, and the root of its size, are part of the matrix behind it: x / √(|x|² + n ε) is left of the root
  mean square norm over n numbers;
- adapters (LoRA) are added to the weights that they adapt;
- all layers are one call (`decode_kernels`), which reads each matrix in the order in which it lies in memory.

The results are the decoder's up to the rounding of fp32. `refresh` copies the weights again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hud.engine.cpu_threads import SMALL_PARAMETERS
from hud.engine.decoder import Decoder
from hud.engine.lora import LoraLinear
from hud.engine.models.reference_decoder import Layer, ReferenceDecoder, RMSNorm
from hud.engine.sample.kv_cache import KVCache
from hud_kernels.cpu.decode_kernels import PANEL, DecodeInputs, draw_on, forward, lay_out, project
from hud_kernels.cpu.kernels import Doubles, Flags, Floats, Integers
from hud_kernels.cpu.matmul_kernels import COLUMNS
from hud_kernels.cpu.passes import heads_of, heads_scale, scale_of, squared_epsilon


class FusedDecoder:
    """Computes new tokens over a key-value cache, as a `ReferenceDecoder` of fp32 weights does."""

    def __init__(self, decoder: ReferenceDecoder) -> None:
        self.config = decoder.config
        self._small = squared_epsilon(decoder.model.norm)
        first = decoder.model.layers[0]
        assert isinstance(first, Layer)
        self._small_heads = heads_of(first.self_attn).small
        self._rotary = decoder.rotary
        self._cos = self._sin = np.empty((0, len(decoder.rotary)), np.float32)
        self._ends: tuple[frozenset[int], Flags] = (
            frozenset(),
            np.zeros(decoder.config.vocab_size, np.bool_),
        )
        config = decoder.config
        width, inner, of_heads = config.hidden_size, config.intermediate_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        shapes = [
            (width, (heads + 2 * kv_heads) * of_heads),
            (heads * of_heads, width),
            (width, 2 * inner),
            (inner, width),
        ]
        layers = config.num_hidden_layers
        # Zeros stay where the last panel has no columns.
        self._matrices = tuple(_room(*shape, layers) for shape in shapes)
        self._head = _room(width, config.vocab_size)
        self.refresh(decoder)

    @torch.no_grad()
    def refresh(self, decoder: ReferenceDecoder) -> None:
        """Lay out a decoder's weights as they are now. Nothing may be computing meanwhile."""
        layers = [layer for layer in decoder.model.layers if isinstance(layer, Layer)]
        self._embedding = decoder.model.embed_tokens.weight.detach().clone().numpy()
        self._scales = np.stack([heads_scale(layer.self_attn).numpy() for layer in layers])
        tied = self.config.tie_word_embeddings
        head = decoder.model.embed_tokens if tied else decoder.lm_head
        _lay_out([head], decoder.model.norm, self._head)
        biases = []
        for number, layer in enumerate(layers):
            parts = _parts(layer)
            for (modules, norm), panels in zip(parts, self._matrices, strict=True):
                _lay_out(modules, norm, panels[number])
            biases.append([_bias(modules) for modules, _ in parts])
        self._biases = tuple(np.stack(of_layers) for of_layers in zip(*biases, strict=True))

    def run(
        self,
        ids: Sequence[Sequence[int]],
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        cache: KVCache,
    ) -> Tensor:
        """Return the last hidden states (N, H), not scaled, of the new tokens `ids` of some rows, one row's after the other's.

        `tables` are the small pages of each row, `starts` how many tokens it has already. All that is in the cache was
        computed here.
        """
        single = all(len(row) == 1 for row in ids)
        furthest = max(start + len(row) for start, row in zip(starts, ids, strict=True)) - 1
        pages, positions = _padded(tables), np.array(starts)
        if not single:
            counts = [len(row) for row in ids]
            pages = np.repeat(pages, counts, axis=0)
            ends = [start + count for start, count in zip(starts, counts, strict=True)]
            positions = np.concatenate(list(map(np.arange, starts, ends)))
        hidden = np.empty((len(positions), self.config.hidden_size), np.float32)
        new = np.array([token for row in ids for token in row])
        forward(new, positions, pages, self._all(furthest, cache), hidden)
        return torch.from_numpy(hidden)

    def draw_on(
        self,
        ids: Sequence[int],
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        cache: KVCache,
        temperatures: Sequence[float],
        uniforms: Sequence[Doubles],
        most: Sequence[int],
        stop_ids: frozenset[int],
        *,
        until_end: bool,
    ) -> tuple[Integers, Doubles, Integers]:
        """Draw up to K tokens for each of N rows after its last one, of `ids`; return them and their logprobs (N, K), and how many.

        `uniforms` (N, K) are the numbers that are drawn with, `stop_ids` the tokens that end a row, `most` (N,) how many it
        gets at most; where `until_end`, all end with the first one. `tables` and `starts` are as in `run`, with pages for K more.
        """
        shape = len(uniforms), len(uniforms[0])
        drawn, logprobs = np.empty(shape, np.int64), np.empty(shape)
        counts = np.empty(len(ids), np.int64)
        draw_on(
            np.array(ids),
            np.array(starts),
            _padded(tables),
            self._all(max(starts) + shape[1] - 1, cache),
            self._head,
            np.array(temperatures, np.float32),
            np.array(uniforms),
            np.array(most),
            self._ends_of(stop_ids),
            until_end,
            drawn,
            logprobs,
            counts,
        )
        return drawn, logprobs, counts

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of what was returned for the last hidden states (N, H)."""
        logits = torch.empty(hidden.shape[0], len(self._head) * PANEL)
        project(hidden.numpy(), self._head, _NO_BIAS, logits.numpy(), False)
        return logits[:, : self.config.vocab_size]

    def _ends_of(self, stop_ids: frozenset[int]) -> Flags:
        """Return for each token of the vocabulary (V,) whether it is a stop id; cached for the last set of ids."""
        cached_ids, ends = self._ends
        if cached_ids != stop_ids:
            ends = np.isin(np.arange(self.config.vocab_size), list(stop_ids))
            self._ends = stop_ids, ends
        return ends

    def _all(self, furthest: int, cache: KVCache) -> DecodeInputs:
        """Return the same for every forward pass, for tokens up to the furthest position."""
        if furthest >= len(self._cos):
            angles = torch.outer(torch.arange(2.0 * furthest + 1), self._rotary)
            self._cos, self._sin = angles.cos().numpy(), angles.sin().numpy()
        values = cache.values.numpy()
        # This cache is the fused decoder's alone: the keys of a page lie in it as the columns of a matrix.
        keys = cache.keys.numpy().reshape(*values.shape[:3], values.shape[4], values.shape[3])
        return (
            self._embedding,
            self._cos,
            self._sin,
            self._scales,
            self._small,
            self._small_heads,
            self._matrices,
            self._biases,
            keys,
            values,
        )


def _padded(tables: Sequence[Sequence[int]]) -> Integers:
    """Return tables of pages (N, P), filled up with any page."""
    widest = max(map(len, tables))
    return np.array([[*table, *[0] * (widest - len(table))] for table in tables])


def can_be_fused(decoder: Decoder) -> bool:
    """Return whether a decoder is sampled by a fused copy, or directly.

    The latter on a GPU, which has kernels of its own; of weights in less than fp32, which would round otherwise; of heads that
    are no whole number of vectors; and of large models, whose copy would take as much memory again and whose steps are few and
    large operations.
    """
    if not isinstance(decoder, ReferenceDecoder) or decoder.device.type != "cpu":
        return False
    if any(parameter.dtype != torch.float32 for parameter in decoder.parameters()):
        return False
    if decoder.config.head_dim % COLUMNS:
        return False
    return sum(parameter.numel() for parameter in decoder.parameters()) <= SMALL_PARAMETERS


def _weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight (out, in), with what an adapter adds, and the bias of a layer."""
    if isinstance(module, LoraLinear):
        return module.merged_weight(), module.base.bias
    assert isinstance(module, nn.Linear | nn.Embedding)
    return module.weight, module.bias if isinstance(module, nn.Linear) else None


def _room(size: int, columns: int, *layers: int) -> Floats:
    """Return room for a matrix (size, columns) in panels, or for one of each layer."""
    return np.zeros((*layers, -(-columns // PANEL), size, PANEL), np.float32)


_NO_BIAS: Floats = np.empty(0, np.float32)


def _parts(layer: Layer) -> list[tuple[list[nn.Module], RMSNorm | None]]:
    """Return what are each of a layer's four products, and the norm before them."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        ([attention.q_proj, attention.k_proj, attention.v_proj], layer.input_layernorm),
        ([attention.o_proj], None),
        ([mlp.gate_proj, mlp.up_proj], layer.post_attention_layernorm),
        ([mlp.down_proj], None),
    ]


def _lay_out(modules: Sequence[nn.Module], norm: RMSNorm | None, panels: Floats) -> None:
    """Write the matrix of several layers at once, behind a norm, into panels (panels, in, PANEL)."""
    scale = torch.ones(panels.shape[1]) if norm is None else scale_of(norm)
    first = 0
    for module in modules:
        weight = _weight_and_bias(module)[0].detach().contiguous()
        lay_out(weight.numpy(), scale.numpy(), first, panels)
        first += len(weight)


def _bias(modules: Sequence[nn.Module]) -> Floats:
    """Return the bias of several layers at once, (0,) where they have none."""
    biases = [bias for _, bias in map(_weight_and_bias, modules) if bias is not None]
    return torch.cat(biases).numpy() if biases else _NO_BIAS
