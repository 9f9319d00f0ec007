"""Causal attention of packed sequences and its gradient, compiled, for one core.

A sequence may continue another one, its prefix, whose keys and values come before its own. There is no padding, and only
the scores of a few queries are in memory: the gradient recomputes them, as in FlashAttention (arXiv 2205.14135).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hud_kernels.cpu.kernels import LOG2_E, Floats, Integers, compiled, f32, power_of_two, weigh
from hud_kernels.cpu.matmul_kernels import COLUMNS, add_product, multiply

QUERIES = 24
"""Queries of a head that attend at once; so few that their scores stay in the core's cache."""


@compiled
def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    starts: Integers,
    prefixes: Integers,
    spans: Integers,
    out: Floats,
    masses: Floats,
) -> None:
    """Write what queries q (T, H, D) attend to among keys k and values v (T, K, D) into `out` (T, H, D).

    `starts` (S + 1,) holds where each sequence starts, and the total; `prefixes` (S,) which one it continues, or -1; `spans`
    (M, 3), whose queries are asked for: a sequence, and from and up to which token, in order. Into `masses` (T, H) goes
    log2 Σ e^score of each of them, for the gradient.
    """
    heads, size, kv_heads = q.shape[1], q.shape[2], k.shape[1]
    group, room = heads // kv_heads, _longest(starts, prefixes)
    scale = f32(LOG2_E / math.sqrt(size))
    # Memory after a sequence's keys is multiplied, too: zeroed, since denormal numbers would be slow.
    keys, all_scores = np.zeros((size, room), f32), np.empty((QUERIES, room), f32)
    for kv_head in range(kv_heads):
        turned, prefix = -1, -1
        for span in range(len(spans)):
            row, begin, end = spans[span]
            start, stop = starts[row], starts[row + 1]
            first, before = _prefix(starts, prefixes, row)
            if row != turned:
                if before and prefixes[row] != prefix:
                    _turn(k[first : first + before, kv_head], keys)
                _turn(k[start:stop, kv_head], keys[:, before:])
                turned, prefix = row, prefixes[row]
            for query in range(begin, end, QUERIES):
                until = min(query + QUERIES, end)
                hidden, shown = before + query - start, before + until - start
                scores = all_scores[: until - query]
                for head in range(kv_head * group, (kv_head + 1) * group):
                    into = out[query:until, head]
                    multiply(
                        q[query:until, head], keys[:, : _whole(shown)], scores[:, : _whole(shown)]
                    )
                    for offset in range(until - query):
                        masses[query + offset, head] = weigh(
                            scores[offset], scale, hidden + offset + 1, shown
                        )
                    multiply(scores[:, :before], v[first : first + before, kv_head], into)
                    own = v[start : start + shown - before, kv_head]
                    add_product(scores[:, before:shown], own, into)


@compiled
def attend_gradient(
    q: Floats,
    k: Floats,
    v: Floats,
    starts: Integers,
    prefixes: Integers,
    spans: Integers,
    out: Floats,
    masses: Floats,
    g: Floats,
    to_q: Floats,
    to_k: Floats,
    to_v: Floats,
) -> None:
    """Add gradients to `to_k` and `to_v`, and write those of the queries in `spans` into `to_q`.

    g (T, H, D) is the gradient of `out`; everything else is what `attend` took, and wrote. With weights p and scores s,
    dv = pᵀ g,  ds = p (g vᵀ - Σ g out),  dq = ds k / √D,  dk = dsᵀ q / √D.
    """
    heads, size, kv_heads = q.shape[1], q.shape[2], k.shape[1]
    group, room = heads // kv_heads, _longest(starts, prefixes)
    scale = f32(1 / math.sqrt(size))
    keys, values = np.zeros((size, room), f32), np.zeros((size, room), f32)
    all_weights, all_slopes = np.empty((QUERIES, room), f32), np.empty((QUERIES, room), f32)
    for kv_head in range(kv_heads):
        turned, prefix = -1, -1
        for span in range(len(spans)):
            row, begin, end = spans[span]
            start, stop = starts[row], starts[row + 1]
            first, before = _prefix(starts, prefixes, row)
            shared = slice(first, first + before)
            if row != turned:
                if before and prefixes[row] != prefix:
                    _turn(k[shared, kv_head], keys)
                    _turn(v[shared, kv_head], values)
                _turn(k[start:stop, kv_head], keys[:, before:])
                _turn(v[start:stop, kv_head], values[:, before:])
                turned, prefix = row, prefixes[row]
            for query in range(begin, end, QUERIES):
                until = min(query + QUERIES, end)
                hidden, shown = before + query - start, before + until - start
                own = slice(start, start + shown - before)
                weights, slopes = all_weights[: until - query], all_slopes[: until - query]
                for head in range(kv_head * group, (kv_head + 1) * group):
                    asking, upstream = q[query:until, head], g[query:until, head]
                    columns = _whole(shown)
                    multiply(asking, keys[:, :columns], weights[:, :columns])
                    multiply(upstream, values[:, :columns], slopes[:, :columns])
                    for offset in range(until - query):
                        at = query + offset
                        along = f32(0)
                        for number in range(size):
                            along += g[at, head, number] * out[at, head, number]
                        _slope(
                            weights[offset],
                            slopes[offset],
                            scale,
                            masses[at, head],
                            along,
                            hidden + offset + 1,
                            shown,
                        )
                    of_prefix, of_own = slopes[:, :before], slopes[:, before:shown]
                    multiply(of_prefix, k[shared, kv_head], to_q[query:until, head])
                    add_product(of_own, k[own, kv_head], to_q[query:until, head])
                    add_product(of_prefix.T, asking, to_k[shared, kv_head])
                    add_product(of_own.T, asking, to_k[own, kv_head])
                    add_product(weights[:, :before].T, upstream, to_v[shared, kv_head])
                    add_product(weights[:, before:shown].T, upstream, to_v[own, kv_head])


@compiled
def _whole(count: Any) -> Any:
    """Return a number of columns, rounded up to whole vectors."""
    return (count + COLUMNS - 1) // COLUMNS * COLUMNS


@compiled
def _prefix(starts: Any, prefixes: Any, row: Any) -> Any:
    """Return start and length of a sequence's prefix."""
    prefix = prefixes[row]
    if prefix < 0:
        return starts[row], starts[row] - starts[row]
    return starts[prefix], starts[prefix + 1] - starts[prefix]


@compiled
def _longest(starts: Any, prefixes: Any) -> Any:
    """Return the number of columns for the keys of the longest sequence, including its prefix."""
    most = 0
    for row in range(len(prefixes)):
        _, before = _prefix(starts, prefixes, row)
        most = max(most, before + starts[row + 1] - starts[row])
    return _whole(most)


@compiled
def _turn(rows: Any, columns: Any) -> None:
    """Write rows (N, D) as the first columns of (D, M)."""
    count, size = rows.shape
    for row in range(count):
        for number in range(size):
            columns[number, row] = rows[row, number]


@compiled
def _slope(
    scores: Any, slopes: Any, scale: Any, mass: Any, along: Any, count: Any, shown: Any
) -> None:
    """Replace scores of a row by weights again, and the gradients of weights in `slopes` by those of scores, times `scale`."""
    to_power = scale * LOG2_E
    for place in range(count):
        # Rounded another time, what was 0 may be above it.
        weight = power_of_two(min(scores[place] * to_power - mass, f32(0)))
        scores[place] = weight
        slopes[place] = weight * (slopes[place] - along) * scale
    for place in range(count, shown):
        scores[place] = f32(0)
        slopes[place] = f32(0)
