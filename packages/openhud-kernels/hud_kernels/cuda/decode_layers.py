# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Elementwise kernels of the sampler's layers, fused by Triton: three kernels a layer beside matrix products and attention.

- the sum with the residual and its norm;
- norms and rotation of queries and keys, and the keys' and values' place in the cache;
- SiLU of the gate times the up projection.

Each rounds where the reference decoder rounds, so that both give the same within the order of a norm's sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hud.engine.models.reference_decoder import Attention, Layer, ReferenceDecoder, RMSNorm
from hud_kernels.cuda.graph_cache import GraphCache

BLOCK = 1024
"""Elements of a program of the gate."""


def hidden_fused(
    decoder: ReferenceDecoder, input_ids: Tensor, positions: Tensor, cache: GraphCache
) -> Tensor:
    """Return what `decoder.hidden_cached` returns for new tokens (N,), for which `cache` is aimed at tables or chunks."""
    cos, sin = decoder._angles(positions)
    x = decoder.model.embed_tokens(input_ids)
    added: Tensor | None = None
    for number, layer in enumerate(decoder.model.layers):
        assert isinstance(layer, Layer)
        attention = layer.self_attn
        x, normed = add_norm(x, added, layer.input_layernorm)
        q = queries(attention, normed, cos, sin, cache, number)
        attended = attention.o_proj(cache.attend(number, q))
        x, normed = add_norm(x, attended, layer.post_attention_layernorm)
        gate, up = layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed)
        added = layer.mlp.down_proj(gated(gate, up))
    return add_norm(x, added, decoder.model.norm)[1]


def add_norm(x: Tensor, added: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
    """Return x + added (N, H), and its norm; None adds nothing."""
    rows, size = x.shape
    total = x if added is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    _add_norm[(rows,)](
        x,
        x if added is None else added,
        norm.weight,
        total,
        normed,
        size,
        norm.eps,
        ADD=added is not None,
        BLOCK=triton.next_power_of_2(size),
        num_warps=8,
    )
    return total, normed


def queries(
    attention: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: GraphCache, layer: int
) -> Tensor:
    """Return the rotated queries (N, heads, D) of x (N, H); store keys and values in the cache."""
    q, k, v = attention.q_proj(x), attention.k_proj(x), attention.v_proj(x)
    heads, kv_heads = attention.heads, attention.kv_heads
    normalized = attention.normalized
    _rotate_and_write[(len(x), heads + 2 * kv_heads)](
        q,
        k,
        v,
        attention.q_norm.weight if normalized else q,
        attention.k_norm.weight if normalized else k,
        cos,
        sin,
        cache.keys[layer],
        cache.values[layer],
        cache.places,
        attention.q_norm.eps if normalized else 0.0,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=attention.head_dim // 2,
        NORMALIZED=normalized,
        num_warps=1,
    )
    rotated: Tensor = q.view(-1, heads, attention.head_dim)
    return rotated


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return SiLU(gate) * up (N, I)."""
    out = torch.empty_like(gate)
    count = gate.numel()
    _gated[(triton.cdiv(count, BLOCK),)](gate, up, out, count, BLOCK=BLOCK)
    return out


@triton.jit
def _add_norm(x, added, weight, total, normed, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    place = tl.arange(0, BLOCK)
    inside = place < size
    kind = normed.dtype.element_ty
    value = tl.load(x + row + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(added + row + place, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(kind)
        tl.store(total + row + place, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    # Rounded before the weight, as the reference is.
    scaled = (value * scale).to(kind).to(tl.float32)
    weights = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + place, (scaled * weights).to(kind), mask=inside)


@triton.jit
def _rotate_and_write(
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos,
    sin,
    keys,
    values,
    places,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    """One head of one row: a query is rotated in place, a key rotated into the cache, a value copied there."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, HALF)
    size = 2 * HALF
    kind = q.dtype.element_ty
    if head >= HEADS + KV_HEADS:
        local_head = head - HEADS - KV_HEADS
        source = v + (row * KV_HEADS + local_head) * size + place
        target = values + tl.load(places + row * KV_HEADS + local_head) * size + place
        tl.store(target, tl.load(source))
        tl.store(target + HALF, tl.load(source + HALF))
    else:
        query = head < HEADS
        local_head = tl.where(query, head, head - HEADS)
        if query:
            source = q + (row * HEADS + local_head) * size + place
            target = source
            weight = q_weight + place
        else:
            source = k + (row * KV_HEADS + local_head) * size + place
            target = keys + tl.load(places + row * KV_HEADS + local_head) * size + place
            weight = k_weight + place
        first, second = tl.load(source).to(tl.float32), tl.load(source + HALF).to(tl.float32)
        if NORMALIZED:
            squares = tl.sum(first * first, 0) + tl.sum(second * second, 0)
            scale = tl.rsqrt(squares / size + eps)
            first = (first * scale).to(kind).to(tl.float32) * tl.load(weight).to(tl.float32)
            second = (second * scale).to(kind).to(tl.float32)
            second = second * tl.load(weight + HALF).to(tl.float32)
            first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
        angle = row * size + place
        cos_first, cos_second = tl.load(cos + angle), tl.load(cos + angle + HALF)
        sin_first, sin_second = tl.load(sin + angle), tl.load(sin + angle + HALF)
        # Each product is rounded before the sum, as the reference's are.
        product = (first * cos_first.to(tl.float32)).to(kind).to(tl.float32)
        other = (second * sin_first.to(tl.float32)).to(kind).to(tl.float32)
        tl.store(target, (product - other).to(kind))
        product = (second * cos_second.to(tl.float32)).to(kind).to(tl.float32)
        other = (first * sin_second.to(tl.float32)).to(kind).to(tl.float32)
        tl.store(target + HALF, (product + other).to(kind))


@triton.jit
def _gated(gate, up, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    kind = out.dtype.element_ty
    x = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    activated = (x / (1.0 + tl.exp(-x))).to(kind).to(tl.float32)
    other = tl.load(up + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, (activated * other).to(kind), mask=inside)
