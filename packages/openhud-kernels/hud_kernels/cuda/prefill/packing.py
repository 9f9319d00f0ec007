"""Prompt chunks packed without padding, on the device in one transfer: tokens, positions, page tables, tiles of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hud_kernels.cuda.drawing import to_device

Integers = NDArray[np.int64]

TILE_QUERIES = 64
"""Queries of one tile: tokens times the heads that share a key, the rows of one matrix product."""


@dataclass(frozen=True)
class PackedChunks:
    """The next tokens of B sequences, T together, end to end. All tensors are int64."""

    ids: Tensor
    """(T,): token ids."""
    positions: Tensor
    """(T,): positions in their sequences."""
    rows: Tensor
    """(T,): the sequence of each token, as a row of `table`."""
    table: Tensor
    """(B, P): the pages of each sequence, in order."""
    tiles: Tensor
    """(M, 4): runs of tokens of one sequence: its row, the first token's index in T and its position, number of tokens."""
    last: Tensor
    """(B,): index in T of each sequence's last token."""


def pack(
    ids: Sequence[Sequence[int]],
    tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    page_tokens: int,
    groups: int,
    device: torch.device,
) -> PackedChunks:
    """Pack the new tokens `ids` of each row, after `starts` tokens in the pages of `tables`.

    `groups`: query heads for each head of keys.
    """
    counts = np.array([len(row) for row in ids])
    begins = np.array(starts)
    ends = counts.cumsum()
    rows = np.arange(len(counts)).repeat(counts)
    positions = np.arange(ends[-1]) - (ends - counts - begins)[rows]
    width = -(-int((begins + counts).max()) // page_tokens)
    table = np.zeros((len(counts), width), dtype=np.int64)
    for row, pages in enumerate(tables):
        table[row, : len(pages)] = pages[:width]
    # Tiles and tables first: the kernel's pointers stay aligned to 16 bytes, for which it is compiled once.
    tiles = _tiles(begins, ends - counts, counts, max(1, TILE_QUERIES // groups))
    tokens = np.concatenate([np.asarray(row) for row in ids])
    parts = (tiles, table, tokens, positions, rows, ends - 1)
    flat = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
    there = torch.split(to_device(flat, device), [part.size for part in parts])
    return PackedChunks(
        tiles=there[0].view(-1, 4),
        table=there[1].view(table.shape),
        ids=there[2],
        positions=there[3],
        rows=there[4],
        last=there[5],
    )


def _tiles(begins: Integers, firsts: Integers, counts: Integers, tile_tokens: int) -> Integers:
    """Return tiles (M, 4) of at most `tile_tokens` tokens, those with the most keys first: the last programs are then short."""
    number = -(-counts // tile_tokens)
    row = np.arange(len(counts)).repeat(number)
    offset = (np.arange(len(row)) - (number.cumsum() - number)[row]) * tile_tokens
    tokens = np.minimum(tile_tokens, counts[row] - offset)
    tiles = np.stack((row, firsts[row] + offset, begins[row] + offset, tokens), axis=1)
    return np.ascontiguousarray(tiles[np.argsort(-tiles[:, 2], kind="stable")])
