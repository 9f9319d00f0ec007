"""Causal attention of packed sequences and its gradient, compiled, for one core.

A sequence may continue others, whose keys and values come before its own, read where they lie. There is no padding, and only
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
    chains: Integers,
    spans: Integers,
    out: Floats,
    masses: Floats,
) -> None:
    """Write what queries q (T, H, D) attend to among keys k and values v (T, K, D) into `out` (T, H, D).

    `starts` (S + 1,) holds where each sequence starts, and the total; `chains` (S, C) the sequences that each attends to, root
    first and itself last, then -1; `spans` (M, 3), whose queries are asked for: a sequence, and from and up to which token, in
    order. Into `masses` (T, H) goes log2 Σ e^score of each of them, for the gradient.
    """
    heads, size, kv_heads = q.shape[1], q.shape[2], k.shape[1]
    group, room = heads // kv_heads, _longest(starts, chains)
    scale = f32(LOG2_E / math.sqrt(size))
    # Memory after a sequence's keys is multiplied, too: zeroed, since denormal numbers would be slow.
    keys, all_scores = np.zeros((size, room), f32), np.empty((QUERIES, room), f32)
    for kv_head in range(kv_heads):
        turned = -1
        for span in range(len(spans)):
            row, begin, end = spans[span]
            if row != turned:
                _turn_chain(k, kv_head, starts, chains, turned, row, keys)
                turned = row
            before = _before(starts, chains, row)
            for query in range(begin, end, QUERIES):
                until = min(query + QUERIES, end)
                hidden, shown = before + query - starts[row], before + until - starts[row]
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
                    column = 0
                    for link in range(chains.shape[1]):
                        if column == shown:
                            break
                        first = starts[chains[row, link]]
                        count = min(starts[chains[row, link] + 1] - first, shown - column)
                        values = v[first : first + count, kv_head]
                        weights = scores[:, column : column + count]
                        if column == 0:
                            multiply(weights, values, into)
                        else:
                            add_product(weights, values, into)
                        column += count


@compiled
def attend_gradient(
    q: Floats,
    k: Floats,
    v: Floats,
    starts: Integers,
    chains: Integers,
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
    group, room = heads // kv_heads, _longest(starts, chains)
    scale = f32(1 / math.sqrt(size))
    keys, values = np.zeros((size, room), f32), np.zeros((size, room), f32)
    all_weights, all_slopes = np.empty((QUERIES, room), f32), np.empty((QUERIES, room), f32)
    for kv_head in range(kv_heads):
        turned = -1
        for span in range(len(spans)):
            row, begin, end = spans[span]
            if row != turned:
                _turn_chain(k, kv_head, starts, chains, turned, row, keys)
                _turn_chain(v, kv_head, starts, chains, turned, row, values)
                turned = row
            before = _before(starts, chains, row)
            for query in range(begin, end, QUERIES):
                until = min(query + QUERIES, end)
                hidden, shown = before + query - starts[row], before + until - starts[row]
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
                    column = 0
                    for link in range(chains.shape[1]):
                        if column == shown:
                            break
                        first = starts[chains[row, link]]
                        count = min(starts[chains[row, link] + 1] - first, shown - column)
                        part = slice(first, first + count)
                        of_part = slopes[:, column : column + count]
                        if column == 0:
                            multiply(of_part, k[part, kv_head], to_q[query:until, head])
                        else:
                            add_product(of_part, k[part, kv_head], to_q[query:until, head])
                        add_product(of_part.T, asking, to_k[part, kv_head])
                        add_product(
                            weights[:, column : column + count].T, upstream, to_v[part, kv_head]
                        )
                        column += count


@compiled
def _whole(count: Any) -> Any:
    """Return a number of columns, rounded up to whole vectors."""
    return (count + COLUMNS - 1) // COLUMNS * COLUMNS


@compiled
def _before(starts: Any, chains: Any, row: Any) -> Any:
    """Return the number of tokens of the sequences that a sequence continues."""
    count = starts[row] - starts[row]
    for link in range(chains.shape[1]):
        other = chains[row, link]
        if other == row:
            break
        count += starts[other + 1] - starts[other]
    return count


@compiled
def _longest(starts: Any, chains: Any) -> Any:
    """Return the number of columns for the keys of the longest sequence, including those that it continues."""
    most = 0
    for row in range(len(chains)):
        most = max(most, _before(starts, chains, row) + starts[row + 1] - starts[row])
    return _whole(most)


@compiled
def _turn_chain(
    x: Any, kv_head: Any, starts: Any, chains: Any, turned: Any, row: Any, columns: Any
) -> None:
    """Write the keys or values x (T, K, D) of all that a sequence attends to as columns of (D, M).

    `turned` is the sequence whose columns are there already, or -1: what both attend to stays.
    """
    column, same = 0, turned >= 0
    for link in range(chains.shape[1]):
        other = chains[row, link]
        if other < 0:
            break
        first, last = starts[other], starts[other + 1]
        same = same and chains[turned, link] == other
        if not same:
            _turn(x[first:last, kv_head], columns[:, column:])
        column += last - first


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
