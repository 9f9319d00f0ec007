"""Attention over the pages of a key-value cache, compiled.

Pages are read where they lie. Keys of a page are stored as the columns of a matrix, so that both products of attention run
through the tiles of `matmul_kernels`. Rows and caches are fp32, or the 16 bits of bfloat16 as integers. Both functions are work
of a team (`team`): their first number is the count of claims.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from hud_kernels.cpu.kernels import LOG2_E, compiled, f32, weigh
from hud_kernels.cpu.layer_kernels import norm_row
from hud_kernels.cpu.matmul_kernels import COLUMNS, add_product, multiply
from hud_kernels.cpu.row_numbers import KINDS, number, put, rounded
from hud_kernels.cpu.team import Work, at, at_floats, at_integers, carray, claim, number_at, work

TOKENS = 8
"""New tokens of a row whose queries go through a page at a time: a unit of attention, for each head of keys."""
ROWS = 16
"""New tokens of a unit of `place`."""


def place(call: Any) -> None:
    """Take N tokens' projections (N, (H + 2 K) D) apart: into queries (N, H, D), and keys and values of a layer's cache.

    Queries and keys are turned by the angles' `cos` and `sin` (N, D), after a norm with the weights `query_norm` and `key_norm`
    (D,), where the address of these is not 0. `keys` is (pages, K, D, T), `values` (pages, K, T, D); token n goes to
    `places[n]` of page `pages[n]`.
    Numbers: keys, values, projections, queries, pages (N,), places (N,), cos, sin, query_norm, key_norm, epsilon (1,) in fp32,
    all pages, K, T, D, N, H.
    """
    all_pages, kv_heads, page_tokens = number_at(call, 12), number_at(call, 13), number_at(call, 14)
    size, rows, heads = number_at(call, 15), number_at(call, 16), number_at(call, 17)
    keys = carray(at(call, 1), (all_pages, kv_heads, size, page_tokens))
    values = carray(at(call, 2), (all_pages, kv_heads, page_tokens, size))
    projected = carray(at(call, 3), (rows, heads + 2 * kv_heads, size))
    queries = carray(at(call, 4), (rows, heads, size))
    pages, places = carray(at_integers(call, 5), rows), carray(at_integers(call, 6), rows)
    cos, sin = carray(at(call, 7), (rows, size)), carray(at(call, 8), (rows, size))
    normalized = number_at(call, 9) != 0
    query_norm = carray(at(call, 9 if normalized else 7), size)
    key_norm = carray(at(call, 10 if normalized else 7), size)
    epsilon = carray(at_floats(call, 11 if normalized else 7), 1)[0]
    wide, key = np.empty(size, np.float32), np.empty_like(projected[0, 0])
    while True:
        first = claim(call) * ROWS
        if first >= rows:
            break
        for row in range(first, min(first + ROWS, rows)):
            for head in range(heads + kv_heads):
                own = projected[row, head]
                if normalized:
                    weight = query_norm if head < heads else key_norm
                    norm_row(own, own, False, weight, epsilon, wide, own)
                turn_head(own, cos[row], sin[row], queries[row, head] if head < heads else key)
                if head >= heads:
                    column = keys[pages[row], head - heads, :, places[row]]
                    for index in range(size):
                        column[index] = key[index]
            for head in range(kv_heads):
                value = values[pages[row], head, places[row]]
                for index in range(size):
                    value[index] = projected[row, heads + kv_heads + head, index]


@compiled
def turn_head(x: Any, cos: Any, sin: Any, out: Any) -> None:
    """Write one head x (D,), turned by its angles, into `out` (D,)."""
    half = len(x) // 2
    for place in range(half):
        a, b = number(x[place]), number(x[place + half])
        c, s = number(cos[place]), number(sin[place])
        put(out, place, rounded(a * c, x) - rounded(b * s, x))
        put(out, place + half, rounded(b * c, x) + rounded(a * s, x))


def attend(call: Any) -> None:
    """Write the attention output of some rows' new tokens into `out` (R, W, H, D).

    `queries` is (R, W, H, D), `tables` (R, P) the pages of each row, `starts` (R,) its tokens before the new ones, which are in
    the cache, too. A token attends to those up to itself. `keys` and `values` are a layer's; see `place`.
    Numbers: keys, values, queries, out, tables, starts, all pages, kv_heads, T, D, R, W, H, P, the longest row's keys.
    """
    all_pages, kv_heads, page_tokens = number_at(call, 7), number_at(call, 8), number_at(call, 9)
    size, rows, width = number_at(call, 10), number_at(call, 11), number_at(call, 12)
    heads, reach = number_at(call, 13), number_at(call, 14)
    keys = carray(at(call, 1), (all_pages, kv_heads, size, page_tokens))
    values = carray(at(call, 2), (all_pages, kv_heads, page_tokens, size))
    queries = carray(at(call, 3), (rows, width, heads, size))
    out = carray(at(call, 4), (rows, width, heads, size))
    tables = carray(at_integers(call, 5), (rows, reach))
    starts = carray(at_integers(call, 6), rows)
    group, runs = heads // kv_heads, (width + TOKENS - 1) // TOKENS
    most = min(TOKENS, width) * group
    scores = np.empty((most, number_at(call, 15) + COLUMNS), np.float32)
    scaled, attended = np.empty((most, size), np.float32), np.empty((most, size), np.float32)
    while True:
        unit = claim(call)
        if unit >= rows * kv_heads * runs:
            break
        # The last tokens attend to the most keys: they are claimed first.
        row, head = unit // (kv_heads * runs), unit // runs % kv_heads
        first = (runs - 1 - unit % runs) * TOKENS
        count = min(TOKENS, width - first)
        attend_run(
            queries[row, first : first + count, head * group : (head + 1) * group],
            tables[row],
            starts[row] + first,
            keys,
            values,
            head,
            (scores, scaled, attended),
            out[row, first : first + count, head * group : (head + 1) * group],
        )


@compiled
def attend_run(
    queries: Any, pages: Any, start: Any, keys: Any, values: Any, head: Any, room: Any, out: Any
) -> None:
    """Write the output (W, group, D) of one head of keys for consecutive tokens' queries (W, group, D) from `start` on."""
    scores, scaled, attended = room
    width, group, size = queries.shape
    page_tokens = values.shape[2]
    count, shown, scale = width * group, start + width, f32(LOG2_E / math.sqrt(size))
    for query in range(count):
        own = queries[query // group, query % group]
        for column in range(size):
            scaled[query, column] = number(own[column]) * scale
    for first in range(0, shown, page_tokens):
        # In whole tiles: scores behind the last key are computed, and not read.
        here = min(page_tokens, (shown - first + COLUMNS - 1) // COLUMNS * COLUMNS)
        page = keys[pages[first // page_tokens], head, :, :here]
        multiply(scaled[:count], page, scores[:count, first : first + here])
    for query in range(count):
        weigh(scores[query], f32(1), start + query // group + 1, shown)
    for first in range(0, shown, page_tokens):
        here = min(page_tokens, shown - first)
        page = values[pages[first // page_tokens], head, :here]
        shares = scores[:count, first : first + here]
        if first > 0:
            add_product(shares, page, attended[:count])
        else:
            multiply(shares, page, attended[:count])
    for query in range(count):
        into = out[query // group, query % group]
        for column in range(size):
            put(into, column, attended[query, column])


class PagedKernels(NamedTuple):
    """The functions of these names, compiled for one dtype."""

    place: Work
    attend: Work


@cache
def kernels_for(dtype: torch.dtype) -> PagedKernels:
    """Return the kernels of rows and a cache in a dtype of `KINDS`."""
    return PagedKernels(*(work(function, KINDS[dtype]) for function in (place, attend)))
