"""The reference decoder: Llama, Qwen2 and Qwen3 in plain PyTorch, read top to bottom.

Two ways through the same weights: packed sequences without padding (training), and new tokens on top of a key-value cache
(sampling). Works on token ids and positions; independent of text, requests and losses. Module names are those of Hugging
Face checkpoints, so a state dict needs no renaming. Kernels replace parts of a
packed pass from outside (`PackedLayers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.engine.decoder import AttentionCache, Decoder
from hud.engine.models.attention import AnyPacking, chosen, packing_of


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32 (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            normed: Tensor = F.rms_norm(x, self.weight.shape, self.weight, self.eps)
            return normed
        # Hugging Face rounds to the weights' type before the scale; equal logits need the same order.
        return self.weight * F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x (N, heads, D) (Su et al. 2021, in the half-split order of Hugging Face)."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.output_bias)
        if config.query_key_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.normalized = config.query_key_norm

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (N, heads, D), k and v (N, kv_heads, D) of x (N, H), positions applied."""
        q = self.q_proj(x).view(-1, self.heads, self.head_dim)
        k = self.k_proj(x).view(-1, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(-1, self.kv_heads, self.head_dim)
        if self.normalized:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, cos, sin), rotate(k, cos, sin), v


class MLP(nn.Module):
    """The gated feed-forward layer (SwiGLU, Shazeer 2020)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(width, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, width, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    """One transformer layer, pre-norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def packed(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        packing: AnyPacking,
        rows: Tensor | None = None,
        layers: PackedLayers | None = None,
    ) -> Tensor:
        """Return the layer's output for packed sequences x (T, H), or for `rows` (N,) of them alone."""
        return (layers or REFERENCE).compute(self, x, cos, sin, packing, rows)

    def cached(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: AttentionCache, layer: int
    ) -> Tensor:
        """Return the layer's output for new tokens x (N, H), whose keys and values the cache then holds too."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        cache.write(layer, k, v)
        return self.finish(x, cache.attend(layer, q))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output (N, H) from its input x (N, H) and the heads' output (N, heads * D)."""
        x = x + self.self_attn.o_proj(attended)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class PackedLayers:
    """The parts of a packed pass that kernels may replace; these are the reference's."""

    def packing(
        self, decoder: ReferenceDecoder, cu_seqlens: Tensor, prefixes: Tensor | None
    ) -> AnyPacking:
        """Return how packed sequences attend; see `Decoder.hidden_packed` for the arguments."""
        return packing_of(cu_seqlens, prefixes)

    def compute(
        self,
        layer: Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        packing: AnyPacking,
        rows: Tensor | None,
    ) -> Tensor:
        """Return a layer's output; see `Layer.packed`."""
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        return layer.finish(chosen(rows, x), packing.attend(q, k, v, rows))

    def recomputed(self, layer: Layer) -> Callable[..., Tensor]:
        """Return `layer.packed` whose activations are computed again in the backward pass."""
        return partial(torch.utils.checkpoint.checkpoint, layer.packed, use_reentrant=False)


REFERENCE = PackedLayers()


class Body(nn.Module):
    """Everything below the vocabulary projection; its name in checkpoints is `model`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = _embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


def _embedding(count: int, size: int) -> nn.Embedding:
    weight = torch.empty(count, size)
    # torch would import its compiler, for two seconds, without sampling anything.
    if not weight.is_meta:
        nn.init.normal_(weight)
    embedding: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False)  # type: ignore[no-untyped-call]
    return embedding


class ReferenceDecoder(Decoder):
    """A decoder of the family."""

    rotary: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        frequencies = inverse_frequencies(config).to(self.device)
        self.register_buffer("rotary", frequencies, persistent=False)

    @property
    def device(self) -> torch.device:
        weight: Tensor = self.model.embed_tokens.weight
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        weight: Tensor = self.model.embed_tokens.weight
        return weight.dtype

    def hidden_packed(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        prefixes: Tensor | None = None,
        rows: Tensor | None = None,
        layers: PackedLayers = REFERENCE,
    ) -> Tensor:
        """Return the last hidden states of packed sequences; see `Decoder.hidden_packed`. `layers`: kernels, if any."""
        cos, sin = self._angles(positions)
        x = self.model.embed_tokens(input_ids)
        packing = layers.packing(self, cu_seqlens, prefixes)
        recompute = self.checkpointed and torch.is_grad_enabled()
        # The last layer computes its output for `rows` alone; of other tokens only keys and values are needed.
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            packed = layers.recomputed(layer) if recompute else layer.packed
            x = packed(x, cos, sin, packing, rows if index == last else None, layers)
        hidden: Tensor = self.model.norm(x)
        return hidden

    def hidden_cached(self, input_ids: Tensor, positions: Tensor, cache: AttentionCache) -> Tensor:
        """Return the last hidden states (N, H) of new tokens, where `cache` says which and after what."""
        cos, sin = self._angles(positions)
        x = self.model.embed_tokens(input_ids)
        for index, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            x = layer.cached(x, cos, sin, cache, index)
        hidden: Tensor = self.model.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the vocabulary logits (N, V) of hidden states (N, H)."""
        if self.config.tie_word_embeddings:
            return F.linear(hidden, self.model.embed_tokens.weight)
        logits: Tensor = self.lm_head(hidden)
        return logits

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin (N, 1, D) of the rotary angles, in the weights' type."""
        angles = positions[:, None].float() * self.rotary
        both = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        return both.cos().to(self.dtype), both.sin().to(self.dtype)


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Return the rotary frequencies (D / 2,), fp32, on the CPU, scaled as the configuration says."""
    return rotary_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)


def rotary_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any] | None) -> Tensor:
    """Return the rotary frequencies (head_dim / 2,), fp32, on the CPU; `scaling` None: unscaled."""
    every_second = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu")
    exponent = every_second.float() / head_dim
    frequencies: Tensor = 1.0 / (theta**exponent)
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        stretched: Tensor = frequencies / scaling["factor"]
        return stretched
    # Llama 3.1: low frequencies are divided by the factor, high ones kept, those between blended.
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    wavelength = 2 * math.pi / frequencies
    blend = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    scaled: Tensor = (1 - blend) * frequencies / scaling["factor"] + blend * frequencies
    return scaled
