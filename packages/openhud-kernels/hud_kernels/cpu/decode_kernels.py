"""A small decoder's forward pass over the key-value cache in one call, compiled, for one core.

Each new token comes with its position and the pages of its row. Within a layer all of them are in the cache before any of
them attends: a token sees those of its row up to itself, whether they come with it or were there before.

Matrices are laid out in **panels** of `PANEL` columns, (panels, in, PANEL): each stays in the core's cache while all rows go
through it, and is read in the order in which it lies there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hud_kernels.cpu.kernels import (
    LOG2_E,
    Doubles,
    Flags,
    Floats,
    Integers,
    compiled,
    draw_rows,
    f32,
    gate,
    normalize,
    turn,
    weigh,
)
from hud_kernels.cpu.matmul_kernels import COLUMNS, LANES, add_product, multiply

PANEL = 64
"""Columns of a panel."""
DEPTH = 128
"""Rows of a panel that are multiplied at a time: so many stay in the core's first cache."""
ROWS = 96
"""Most rows that go through a panel at a time: so many stay in the core's cache."""


DecodeInputs = tuple[Floats, Floats, Floats, Floats, float, float, Any, Any, Floats, Floats]
"""Inputs of every forward pass: the embedding (V, H); cosines and sines (C, D / 2) of every position's angles; the scales
(layers, heads + kv_heads, D) of queries and keys; epsilons for the sums of squares of a norm, and of the norms of queries and keys,
below 0 where these are not normalized; the matrices and biases of queries, keys and values, of what was attended to, of gates and
ups, and of what leaves them, each for all layers at once, biases without columns where there are none; and the cache: keys
(layers, pages, kv_heads, D, T) and values (layers, pages, kv_heads, T, D), T being a multiple of `COLUMNS`."""


@compiled
def forward(
    ids: Integers,
    positions: Integers,
    tables: Integers,
    inputs: DecodeInputs,
    hidden: Floats,
) -> None:
    """Write the last hidden states of N tokens into `hidden` (N, H), divided by their lengths and not scaled.

    `ids` and `positions` are (N,), `tables` (N, P) the pages of each one's row.
    """
    embedding, cos, sin, scales, small, small_heads, matrices, biases, keys, values = inputs
    count, width, size = len(ids), embedding.shape[1], values.shape[4]
    kv_heads = keys.shape[2]
    heads = scales.shape[1] - kv_heads
    wide = matrices[3].shape[2]
    x = np.empty((count, matrices[1].shape[1] * PANEL), f32)
    normed, attended = np.empty((count, width), f32), np.empty((count, heads * size), f32)
    projected = np.empty((count, matrices[0].shape[1] * PANEL), f32)
    gates_ups = np.empty((count, matrices[2].shape[1] * PANEL), f32)
    gated, queries = np.empty((count, wide), f32), np.empty((heads, size), f32)
    furthest = 0
    for row in range(count):
        furthest = max(furthest, positions[row])
        for number in range(width):
            x[row, number] = embedding[ids[row], number]
        for number in range(width, x.shape[1]):
            x[row, number] = f32(0)
    # Keys are multiplied with in whole tiles.
    scores = np.empty((heads // kv_heads, furthest + 1 + COLUMNS), f32)
    scale = f32(LOG2_E / math.sqrt(size))
    for layer in range(len(keys)):
        normalize(x[:, :width], small, normed)
        project(normed, matrices[0][layer], biases[0][layer], projected, False)
        for row in range(count):
            _store(
                projected[row], scales[layer], small_heads, cos[positions[row]], sin[positions[row]],
                tables[row], positions[row], keys[layer], values[layer],
            )  # fmt: skip
        for row in range(count):
            at = positions[row]
            for head in range(heads):
                own = projected[row, head * size : (head + 1) * size]
                turn(own, scales[layer, head], small_heads, cos[at], sin[at], queries[head])
                for number in range(size):
                    queries[head, number] *= scale
            _attend(queries, keys[layer], values[layer], tables[row], at + 1, scores, attended[row])
        project(attended, matrices[1][layer], biases[1][layer], x, True)
        normalize(x[:, :width], small, normed)
        project(normed, matrices[2][layer], biases[2][layer], gates_ups, False)
        gate(gates_ups, gated)
        project(gated, matrices[3][layer], biases[3][layer], x, True)
    normalize(x[:, :width], small, hidden)


@compiled
def draw_on(
    ids: Integers,
    positions: Integers,
    tables: Integers,
    inputs: DecodeInputs,
    head: Floats,
    temperatures: Floats,
    uniforms: Doubles,
    most: Integers,
    ends: Flags,
    until_end: bool,
    drawn: Integers,
    logprobs: Doubles,
    counts: Integers,
) -> None:
    """Sample up to K tokens for each of N rows, one after the other, into `drawn` and `logprobs` (N, K), `counts` (N,) of each.

    A row ends after `most` (N,) tokens, and with a token of which `ends` (V,) is true; where `until_end`, all of them end with
    the first one. `ids` (N,), `positions` (N,) and `tables` (N, P) are those of the tokens that rows end with now; they are
    overwritten. `head` are the panels of the vocabulary; `uniforms` (N, K) the numbers that are drawn with (see `draw_rows`).
    """
    left, rows = len(ids), np.arange(len(ids))
    hidden = np.empty((left, head.shape[1]), f32)
    logits = np.empty((left, len(head) * PANEL), f32)
    chosen, chances = np.empty(left, np.int64), np.empty(left)
    numbers, warmth, nothing = np.empty(left), temperatures.copy(), np.empty(0, f32)
    counts[:] = 0
    for step in range(uniforms.shape[1]):
        forward(ids[:left], positions[:left], tables[:left], inputs, hidden[:left])
        project(hidden[:left], head, nothing, logits[:left], False)
        for place in range(left):
            numbers[place] = uniforms[rows[place], step]
        draw_rows(
            logits[:left], len(ends), warmth[:left], numbers[:left], chosen[:left], chances[:left]
        )
        remaining = 0
        for place in range(left):
            row, token = rows[place], chosen[place]
            drawn[row, step], logprobs[row, step] = token, chances[place]
            counts[row] = step + 1
            if ends[token] or step + 1 >= most[row]:
                continue
            rows[remaining], ids[remaining], positions[remaining] = row, token, positions[place] + 1
            warmth[remaining] = warmth[place]
            for page in range(tables.shape[1]):
                tables[remaining, page] = tables[place, page]
            remaining += 1
        if remaining == 0 or (until_end and remaining < left):
            break
        left = remaining


@compiled
def lay_out(weight: Floats, scale: Floats, first: int, panels: Floats) -> None:
    """Write a weight (out, in), times `scale` (in,), as columns of panels (panels, in, PANEL), from the `first` one on."""
    rows, size = weight.shape
    # In squares that stay in the core's first cache: one side reads lines of memory, the other writes them.
    for top in range(0, rows, LANES):
        for left in range(0, size, LANES):
            for row in range(top, min(top + LANES, rows)):
                panel, column = divmod(first + row, PANEL)
                for number in range(left, min(left + LANES, size)):
                    panels[panel, number, column] = weight[row, number] * scale[number]


@compiled
def project(x: Floats, panels: Floats, bias: Floats, out: Floats, added: bool) -> None:
    """Write x (N, K) times a matrix, in panels, and `bias` into `out` (N, M), or add them; M is that of whole panels."""
    for first in range(0, x.shape[0], ROWS):
        last = min(first + ROWS, x.shape[0])
        for panel in range(len(panels)):
            columns = out[first:last, panel * PANEL : (panel + 1) * PANEL]
            for start in range(0, x.shape[1], DEPTH):
                part = slice(start, min(start + DEPTH, x.shape[1]))
                if added or start > 0:
                    add_product(x[first:last, part], panels[panel, part], columns)
                else:
                    multiply(x[first:last, part], panels[panel, part], columns)
    if len(bias):
        for row in range(x.shape[0]):
            for column in range(len(bias)):
                out[row, column] += bias[column]


@compiled
def _store(
    projected: Any,
    scales: Any,
    small: Any,
    cos: Any,
    sin: Any,
    table: Any,
    position: Any,
    keys: Any,
    values: Any,
) -> None:
    """Put the keys and values of one token into the cache of a layer."""
    kv_heads, tokens, size = values.shape[1], values.shape[2], values.shape[3]
    heads = len(scales) - kv_heads
    page, place = table[position // tokens], position % tokens
    for head in range(kv_heads):
        own = (heads + head) * size
        key = projected[own : own + size]
        turn(key, scales[heads + head], small, cos, sin, keys[page, head, :, place])
        own += kv_heads * size
        for number in range(size):
            values[page, head, place, number] = projected[own + number]


@compiled
def _attend(
    queries: Any, keys: Any, values: Any, table: Any, count: Any, scores: Any, out: Any
) -> None:
    """Write what one token's queries (heads, D), scaled, attend to among the first `count` tokens of some pages (heads D,)."""
    kv_heads, tokens, size = values.shape[1], values.shape[2], values.shape[3]
    group = len(queries) // kv_heads
    attended = out.reshape(len(queries), size)
    for head in range(kv_heads):
        own = slice(head * group, (head + 1) * group)
        for start in range(0, count, tokens):
            # In whole tiles: what stands behind the last key is multiplied with, and means nothing.
            here = min(tokens, (count - start + COLUMNS - 1) // COLUMNS * COLUMNS)
            columns = keys[table[start // tokens], head, :, :here]
            multiply(queries[own], columns, scores[:, start : start + here])
        for query in range(group):
            weigh(scores[query], f32(1), count, count)
        for start in range(0, count, tokens):
            here, page = min(tokens, count - start), table[start // tokens]
            shares = scores[:, start : start + here]
            if start > 0:
                add_product(shares, values[page, head, :here], attended[own])
            else:
                multiply(shares, values[page, head, :here], attended[own])
