# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Attention of packed prompt chunks over page tables, in Triton: all chunks of a pass in one launch, however long they are.

One program attends with the queries of one tile, some tokens of one sequence and the heads that share a key, to the cached
prefix and to the sequence's own tokens up to each query, page by page (FlashAttention, Dao et al. 2022, over the pages of
PagedAttention, Kwon et al. 2023). Nothing is gathered, padded or masked in memory. Needs triton.
Without a GPU it is tested against the gathering path in Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hud_kernels.cuda.prefill.packing import TILE_QUERIES


def prefill_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, tiles: Tensor
) -> Tensor:
    """Return what the queries q (T, heads, D) of packed tokens attend to: (T, heads, D).

    `keys` and `values` are one layer's (pages, kv_heads, page_tokens, D) and hold the new tokens, too; `table` (B, P) and
    `tiles` (M, 4) are those of `PackedChunks`. D and page_tokens are powers of two, 16 or more.
    """
    heads, dim = q.shape[1:]
    kv_heads, page_tokens = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _attend[(len(tiles), kv_heads)](
        q.contiguous(),
        keys,
        values,
        table,
        tiles,
        out,
        dim**-0.5,
        table.stride(0),
        GROUPS=groups,
        ROWS=max(TILE_QUERIES, triton.next_power_of_2(groups)),
        PAGE=page_tokens,
        DIM=dim,
        num_warps=4,
        # Two pages of fp32 in flight do not fit into the shared memory of small GPUs.
        num_stages=2 if q.element_size() == 2 else 1,
    )
    return out


# The width of tables changes from pass to pass; no width may compile the kernel anew.
@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    q,
    keys,
    values,
    table,
    tiles,
    out,
    scale,
    table_stride,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
):
    """Attend with one tile's queries of one group of heads."""
    tile, head, kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    position = tl.load(tiles + tile * 4 + 2).to(tl.int32)
    count = tl.load(tiles + tile * 4 + 3).to(tl.int32)
    query, place, dim = tl.arange(0, ROWS), tl.arange(0, PAGE), tl.arange(0, DIM)
    token = query // GROUPS
    real = token < count
    which = ((first + token) * kv_heads + head) * GROUPS + query % GROUPS
    at_query = which[:, None] * DIM + dim[None, :]
    queries = tl.load(q + at_query, mask=real[:, None], other=0.0)
    reach, length = position + token, position + count
    highest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DIM), tl.float32)
    for number in range(0, tl.cdiv(length, PAGE)):
        page = tl.load(table + row * table_stride + number)
        at = (page * kv_heads + head) * PAGE * DIM + place[:, None] * DIM + dim[None, :]
        key = number * PAGE + place
        # What lies behind the last token may be anything, even no number.
        k = tl.load(keys + at, mask=(key < length)[:, None], other=0.0)
        v = tl.load(values + at, mask=(key < length)[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        # The first page has a key for every query, so that the peak is one of a real score from then on.
        scores = tl.where(key[None, :] <= reach[:, None], scores, -1e30)
        peak = tl.maximum(highest, tl.max(scores, 1))
        shrunk = tl.exp(highest - peak)
        weights = tl.exp(scores - peak[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        sums = sums * shrunk[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = peak
    sums = sums / total[:, None]
    tl.store(out + at_query, sums.to(out.dtype.element_ty), mask=real[:, None])
