"""Attention of packed sequences in tiles, for training small models on one core.

A tile is some tokens of a sequence that follow one another, and all that they may attend to. Tiles of like size are computed
at once, as many as stay in the core's cache, by torch's batched matrix products and the kernels between them. Nothing is kept
for the gradient but what came in: scores are computed again from it (Dao et al. 2022). Queries are scaled so that scores are
exponents of 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hud.engine.kernels import LOG2_E, Integers
from hud.engine.tile_kernels import gather, scatter, shares, shares_gradient

TOKENS = 64
"""Most tokens of a tile. With more, more scores are computed that are hidden from some of them."""
STEP = 16
"""Tiles whose tokens are as many, rounded up to this, may be computed at once."""
SCORES = 1 << 18
"""Most scores that are computed at once, unless one tile has more."""


class Tiles:
    """Sequences that attend tile by tile; what continues which is as for `SharedLayout`."""

    def __init__(self, starts: Sequence[int], prefixes: Sequence[int] | None) -> None:
        """`starts` (S + 1,) holds where each sequence begins, and where the last one ends."""
        self._tiles = list(_tiles(starts, prefixes or [-1] * len(starts)))
        self._batches: list[_Batch] = []

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (T, heads * D) for fp32 q (T, heads, D), k and v (T, kv_heads, D)."""
        if not self._batches:
            self._batches = [_Batch.of(tiles) for tiles in _alike(self._tiles, q.shape[1])]
        output: Tensor = _Attended.apply(q, k, v, self._batches)  # type: ignore[no-untyped-call]
        return output


@dataclass(frozen=True)
class _Tile:
    """The tokens from `first` to `end`, which follow those from `start` in their sequence, behind all of `prefix`."""

    prefix: range
    start: int
    first: int
    end: int

    @property
    def count(self) -> int:
        """How many tokens ask."""
        return self.end - self.first

    @property
    def reach(self) -> int:
        """How many the last of them may attend to."""
        return len(self.prefix) + self.end - self.start

    @property
    def rounded(self) -> int:
        """The count, rounded up."""
        return -(-self.count // STEP)


def _tiles(starts: Sequence[int], prefixes: Sequence[int]) -> Iterator[_Tile]:
    for row, (start, end) in enumerate(pairwise(starts)):
        continued = prefixes[row]
        prefix = range(0) if continued < 0 else range(starts[continued], starts[continued + 1])
        for first in range(start, end, TOKENS):
            yield _Tile(prefix, start, first, min(first + TOKENS, end))


def _alike(tiles: Sequence[_Tile], heads: int) -> Iterator[list[_Tile]]:
    """Yield tiles of like size together."""
    batch: list[_Tile] = []
    for tile in sorted(tiles, key=lambda one: (one.rounded, one.reach)):
        # The last one has the furthest reach.
        scores = (len(batch) + 1) * heads * tile.rounded * STEP * tile.reach
        if batch and (tile.rounded != batch[0].rounded or scores > SCORES):
            yield batch
            batch = []
        batch.append(tile)
    if batch:
        yield batch


@dataclass(frozen=True)
class _Batch:
    """Tiles that are computed at once."""

    asking: Integers
    """(B, N): their tokens; -1 behind the last."""
    seen: Integers
    """(B, M): the tokens that these may attend to; -1 behind the last."""
    shown: Integers
    """(B, N): to how many of these each of them may; 0 behind the last."""

    @classmethod
    def of(cls, tiles: Sequence[_Tile]) -> _Batch:
        """Return these tiles."""
        asking = np.full((len(tiles), max(one.count for one in tiles)), -1)
        seen = np.full((len(tiles), max(one.reach for one in tiles)), -1)
        shown = np.zeros_like(asking)
        for row, one in enumerate(tiles):
            asking[row, : one.count] = np.arange(one.first, one.end)
            before = np.arange(one.prefix.start, one.prefix.stop)
            seen[row, : one.reach] = np.concatenate((before, np.arange(one.start, one.end)))
            shown[row, : one.count] = np.arange(one.reach - one.count, one.reach) + 1
        return cls(asking, seen, shown)


class _Attended(torch.autograd.Function):
    """What tokens attend to, (T, H D), of q (T, H, D), k and v (T, K, D).

    With scores s, shares p = softmax(s) and attended a = p v:  dv = pᵀ da,  dp = da vᵀ,  ds = p (dp - Σ p dp).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, batches: Sequence[_Batch]) -> Tensor:
        q, k, v = (one.detach().contiguous() for one in (q, k, v))
        attended, room = torch.zeros_like(q), _Room(k.shape[1])
        for batch in batches:
            found = _Found(batch, q, k, v, room)
            room.add(room.product("result", found.shares, found.values), batch.asking, attended)
        ctx.save_for_backward(q, k, v)
        ctx.batches = batches
        return attended.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        g = g.contiguous().view_as(q)
        dq, dk, dv, room = *(torch.zeros_like(one) for one in (q, k, v)), _Room(k.shape[1])
        for batch in ctx.batches:
            found = _Found(batch, q, k, v, room)
            upstream = room.taken("upstream", g, batch.asking)
            to_scores = room.product("to_scores", upstream, found.values.mT)
            room.add(room.product("result", found.shares.mT, upstream), batch.seen, dv)
            shares_gradient(found.shares.numpy(), to_scores.numpy())
            room.add(room.product("result", to_scores, found.keys), batch.asking, dq, scale_of(q))
            room.add(room.product("result", to_scores.mT, found.queries), batch.seen, dk)
        return dq, dk, dv, None


class _Found:
    """Of a batch: queries, scaled, (B K, N G, D), keys and values (B K, M, D), and shares (B K, N G, M)."""

    def __init__(self, batch: _Batch, q: Tensor, k: Tensor, v: Tensor, room: _Room) -> None:
        self.queries = room.taken("queries", q, batch.asking, scale_of(q))
        self.keys = room.taken("keys", k, batch.seen)
        self.values = room.taken("values", v, batch.seen)
        self.shares = room.product("shares", self.queries, self.keys.mT)
        tiles, count = batch.shown.shape
        scores = self.shares.view(tiles, room.kv_heads, count, -1, self.keys.shape[1])
        shares(scores.numpy(), batch.shown)


class _Room:
    """Memory that one batch after the other is computed in: to get it anew costs as much as a small product."""

    def __init__(self, kv_heads: int) -> None:
        self.kv_heads = kv_heads
        self._held: dict[str, Tensor] = {}

    def product(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """Return the products of a (B, N, W) and b (B, W, M); what was returned by that name is lost."""
        return torch.bmm(a, b, out=self._of(name, len(a), a.shape[1], b.shape[2]))

    def taken(self, name: str, x: Tensor, tokens: Integers, factor: float = 1.0) -> Tensor:
        """Return x (T, K G, D) of tokens (B, N), times a factor, as (B K, N G, D); what was returned by that name is lost."""
        width = x.shape[1] // self.kv_heads * x.shape[2]
        found = self._of(name, len(tokens), self.kv_heads, tokens.shape[1], width)
        gather(x.view(len(x), self.kv_heads, width).numpy(), tokens, factor, found.numpy())
        return found.view(len(tokens) * self.kv_heads, -1, x.shape[2])

    def add(self, found: Tensor, tokens: Integers, into: Tensor, factor: float = 1.0) -> None:
        """Add what was found (B K, N G, D) for tokens (B, N), times a factor, to `into` (T, K G, D)."""
        parts = found.view(*tokens.shape[:1], self.kv_heads, tokens.shape[1], -1)
        sums = into.view(len(into), self.kv_heads, -1)
        scatter(parts.numpy(), tokens, factor, sums.numpy())

    def _of(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        if name not in self._held or self._held[name].numel() < size:
            self._held[name] = torch.empty(size)
        return self._held[name][:size].view(shape)


def scale_of(q: Tensor) -> float:
    """Return what queries (..., D) are multiplied by, so that shares are powers of 2 of scores."""
    return float(LOG2_E) / math.sqrt(q.shape[-1])
