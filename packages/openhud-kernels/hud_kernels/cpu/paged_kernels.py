"""Attention over the pages of a key-value cache, compiled, for one core.

Pages are read where they lie. Keys of a page are stored as the columns of a matrix, so that both products of attention run
through the tiles of `matmul_kernels`. Caches in bfloat16 hold its 16 bits as integers; a page is widened to fp32 when it is read.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from hud_kernels.cpu.kernels import LOG2_E, Floats, Integers, compiled, f32, float_of, i32, weigh
from hud_kernels.cpu.matmul_kernels import COLUMNS, add_product, multiply

TOKENS = 8
"""New tokens of a row whose queries go through a page at a time."""


@compiled
def store(
    keys: Any,
    values: Any,
    new_keys: Any,
    new_values: Any,
    pages: Integers,
    places: Integers,
) -> None:
    """Write keys and values (N, kv_heads, D) of new tokens into a layer's cache.

    `keys` is (pages, kv_heads, D, T), `values` (pages, kv_heads, T, D); token n goes to `places[n]` of page `pages[n]`.
    """
    for row in range(len(pages)):
        page, place = pages[row], places[row]
        for head in range(values.shape[1]):
            for number in range(values.shape[3]):
                keys[page, head, number, place] = new_keys[row, head, number]
                values[page, head, place, number] = new_values[row, head, number]


@compiled
def attend(
    queries: Floats,
    tables: Integers,
    starts: Integers,
    keys: Any,
    values: Any,
    out: Floats,
) -> None:
    """Write the attention output of some rows' new tokens into `out` (R, W, H, D).

    `queries` is (R, W, H, D), `tables` (R, P) the pages of each row, `starts` (R,) its tokens before the new ones, which are in
    the cache, too. A token attends to those up to itself. `keys` and `values` are a layer's; see `store`.
    """
    rows, width, heads, size = queries.shape
    kv_heads, page_tokens = values.shape[1], values.shape[2]
    group, scale = heads // kv_heads, f32(LOG2_E / math.sqrt(size))
    longest = 0
    for row in range(rows):
        longest = max(longest, starts[row] + width)
    most = min(TOKENS, width) * group
    scores = np.empty((most, longest + COLUMNS), f32)
    scaled, attended = np.empty((most, size), f32), np.empty((most, size), f32)
    wide_keys = np.empty((size, page_tokens), f32)
    wide_values = np.empty((page_tokens, size), f32)
    for row in range(rows):
        for first in range(0, width, TOKENS):
            tokens = min(TOKENS, width - first)
            count, shown = tokens * group, starts[row] + first + tokens
            for head in range(kv_heads):
                for query in range(count):
                    own = queries[row, first + query // group, head * group + query % group]
                    for number in range(size):
                        scaled[query, number] = own[number] * scale
                for start in range(0, shown, page_tokens):
                    # In whole tiles: scores behind the last key are computed, and not read.
                    here = min(page_tokens, (shown - start + COLUMNS - 1) // COLUMNS * COLUMNS)
                    page = as_floats(
                        keys[tables[row, start // page_tokens], head], wide_keys, size, here
                    )
                    multiply(scaled[:count], page[:, :here], scores[:count, start : start + here])
                for query in range(count):
                    visible = starts[row] + first + query // group + 1
                    weigh(scores[query], f32(1), visible, shown)
                for start in range(0, shown, page_tokens):
                    here = min(page_tokens, shown - start)
                    page = as_floats(
                        values[tables[row, start // page_tokens], head], wide_values, here, size
                    )
                    shares = scores[:count, start : start + here]
                    if start > 0:
                        add_product(shares, page[:here], attended[:count])
                    else:
                        multiply(shares, page[:here], attended[:count])
                for query in range(count):
                    into = out[row, first + query // group, head * group + query % group]
                    for number in range(size):
                        into[number] = attended[query, number]


def as_floats(page: Any, room: Floats, rows: int, columns: int) -> Floats:
    """Return the first `rows` and `columns` of a page (N, M) in fp32: the page itself, or a copy of its bfloat16 in `room`."""
    raise NotImplementedError("compiled code only")


@overload(as_floats)
def _as_floats(page: Any, room: Any, rows: Any, columns: Any) -> Any:  # noqa: ARG001
    def keep(page: Any, room: Any, rows: Any, columns: Any) -> Any:  # noqa: ARG001
        return page

    def widen(page: Any, room: Any, rows: Any, columns: Any) -> Any:
        for row in range(rows):
            for column in range(columns):
                room[row, column] = float_of(i32(page[row, column]) << i32(16))
        return room

    return keep if page.dtype == types.float32 else widen
