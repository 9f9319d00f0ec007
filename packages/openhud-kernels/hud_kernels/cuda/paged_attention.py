# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Attention of decode steps over a page table, in Triton: each sequence reads the pages that it has, and no others.

One program attends with the queries of one group of heads to one part of a sequence's pages; a softmax over the parts
puts them together (flash decoding, Dao et al. 2023). How many parts there are does not depend on how long sequences
are, so a step can be recorded as a CUDA graph. Needs triton.
Without a GPU it is tested against the gathering path in Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 512
"""About how many programs keep a large GPU busy: short batches are split over the length of their keys for it."""
MOST_PARTS = 16
_LEAST_ROWS = 16
"""Fewest rows of a matrix product in Triton."""


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor
) -> Tensor:
    """Return what one query for each sequence (B, heads, D) attends to: (B, heads, D).

    `keys` and `values` are one layer's (pages, kv_heads, page_tokens, D), `table` (B, P) int64 has each sequence's pages
    in order, `lengths` (B,) int64 how many tokens of them count, at least 1. D and page_tokens are powers of two, 16 or
    more.
    """
    rows, heads, dim = q.shape
    kv_heads, page_tokens = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    parts = max(1, min(MOST_PARTS, PROGRAMS // (rows * kv_heads), table.shape[1]))
    partial = torch.empty(rows, heads, parts, dim, dtype=torch.float32, device=q.device)
    mass = torch.empty(rows, heads, parts, dtype=torch.float32, device=q.device)
    _attend[(rows, kv_heads, parts)](
        q.contiguous(),
        keys,
        values,
        table,
        lengths,
        partial,
        mass,
        dim**-0.5,
        table.stride(0),
        GROUPS=groups,
        ROWS=max(_LEAST_ROWS, triton.next_power_of_2(groups)),
        PAGE=page_tokens,
        DIM=dim,
    )
    out = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    _combine[(rows * heads,)](
        partial, mass, out, PARTS=parts, BLOCK=triton.next_power_of_2(parts), DIM=dim, num_warps=1
    )
    return out


@triton.jit
def _combine(partial, mass, out, PARTS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr):
    """Add up the parts of one query, weighted by their masses."""
    which = tl.program_id(0).to(tl.int64)
    part, dim = tl.arange(0, BLOCK), tl.arange(0, DIM)
    real = part < PARTS
    logged = tl.load(mass + which * PARTS + part, mask=real, other=float("-inf"))
    weights = tl.exp(logged - tl.max(logged, 0))
    weights = weights / tl.sum(weights, 0)
    at = (which * PARTS + part)[:, None] * DIM + dim[None, :]
    values = tl.load(partial + at, mask=real[:, None], other=0.0)
    total = tl.sum(values * weights[:, None], 0)
    tl.store(out + which * DIM + dim, total.to(out.dtype.element_ty))


@triton.jit
def _attend(
    q,
    keys,
    values,
    table,
    lengths,
    partial,
    mass,
    scale,
    table_stride,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
):
    """Attend to one part of a sequence's pages; store (D,) and the log of the mass for each query of the group."""
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_heads, parts = tl.num_programs(1), tl.num_programs(2)
    length = tl.load(lengths + row)
    pages = tl.cdiv(length, PAGE)
    part_pages = tl.cdiv(pages, parts)
    group, place, dim = tl.arange(0, ROWS), tl.arange(0, PAGE), tl.arange(0, DIM)
    real = group < GROUPS
    which = (row * kv_heads + head) * GROUPS + group
    queries = tl.load(q + which[:, None] * DIM + dim[None, :], mask=real[:, None], other=0.0)
    # Finite, so that a part without pages is no difference of infinities.
    highest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DIM), tl.float32)
    for number in range(part * part_pages, tl.minimum((part + 1) * part_pages, pages)):
        page = tl.load(table + row * table_stride + number).to(tl.int64)
        at = (page * kv_heads + head) * PAGE * DIM + place[:, None] * DIM + dim[None, :]
        counts = number * PAGE + place < length
        # What lies behind the last token may be anything, even no number.
        k = tl.load(keys + at, mask=counts[:, None], other=0.0)
        v = tl.load(values + at, mask=counts[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(counts[None, :], scores, -1e30)
        peak = tl.maximum(highest, tl.max(scores, 1))
        shrunk = tl.exp(highest - peak)
        weights = tl.exp(scores - peak[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        sums = sums * shrunk[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = peak
    empty = total == 0.0
    sums = sums / tl.where(empty, 1.0, total)[:, None]
    logged = tl.where(empty, float("-inf"), highest + tl.log(tl.where(empty, 1.0, total)))
    to = which * parts + part
    tl.store(partial + to[:, None] * DIM + dim[None, :], sums, mask=real[:, None])
    tl.store(mass + to, logged, mask=real)
