"""The key-value cache: a fixed number of pages, all allocated at once.

Where memory allows it, a page holds a whole conversation: its keys and values are read where they lie. Otherwise
pages are small and a conversation has a table of them; they are gathered for attention, a part of the batch at a
time. Which tokens a page holds is the sampler's business. Before a forward pass, `aim` says where new tokens belong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.errors import UsageError

PAGE_TOKENS = 64
"""Positions in a page, where a page is not a whole conversation."""
GATHER_BYTES = 64 << 20
"""Most keys and values that one layer gathers at a time; a single conversation may need more."""


@dataclass(frozen=True)
class CacheSize:
    """How a cache is laid out."""

    pages: int
    """Pages for conversations. Of small pages there is one more, for what nobody reads."""
    page_tokens: int
    max_context: int
    """Most tokens of one conversation."""
    whole: bool
    """True where a page is a whole conversation."""

    @classmethod
    def within(
        cls,
        budget: int,
        config: DecoderConfig,
        dtype: torch.dtype,
        *,
        slots: int,
        max_context: int | None,
        tables: bool = False,
    ) -> CacheSize:
        """Return the best layout of at most `budget` bytes for `slots` conversations at a time.

        `max_context` None: as much as the model knows and the budget holds. `tables`: pages are small in any case, as
        attention reads page tables. Raises `UsageError` where one conversation does not fit.
        """
        context = max_context or config.max_position_embeddings
        # One position more than a conversation can have: padding of a batch writes there.
        if not tables and slots * bytes_for(config, 1, context + 1, dtype) <= budget:
            return cls(slots, context + 1, context, True)
        each = bytes_for(config, 1, PAGE_TOKENS, dtype)
        pages = min(budget // each - 1, slots * -(-context // PAGE_TOKENS))
        most = min(context, pages * PAGE_TOKENS)
        if pages < 1 or (max_context is not None and most < max_context):
            needed = (-(-(max_context or 1) // PAGE_TOKENS) + 1) * each
            raise UsageError(
                f"One conversation of {max_context or PAGE_TOKENS} tokens needs {needed / 2**20:,.1f} MiB of key-value "
                f"cache; the budget is {budget / 2**20:,.1f} MiB. Lower max_context, or raise the budget."
            )
        return cls(pages, PAGE_TOKENS, most, False)


def bytes_for(config: DecoderConfig, pages: int, page_tokens: int, dtype: torch.dtype) -> int:
    """Return the size of so many pages in bytes."""
    elements = config.num_hidden_layers * pages * config.num_key_value_heads * page_tokens
    return 2 * elements * config.head_dim * dtype.itemsize


@dataclass(frozen=True)
class _Part:
    """Some rows of a batch, and what their new tokens may attend to."""

    rows: slice
    pages: slice | Tensor
    """Of whole pages, which; of small ones, those of each row's heads, flat, in the order of their positions."""
    reach: int
    """Keys for each row."""
    bias: Tensor
    """(rows, 1, width, reach): minus infinity where a new token may not attend to a key, else 0. Of what `among` says, too."""
    among: Tensor | None = None
    """(rows,): where the rows lie in `pages`, when pages of others lie between them."""


class KVCache:
    """Keys and values (layers, pages, kv_heads, page_tokens, D).

    `FusedDecoder` keeps the keys of a page as (D, page_tokens), writes and attends itself, and shares a cache with nobody.
    """

    def __init__(
        self, config: DecoderConfig, size: CacheSize, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.size = size
        self.kv_heads = config.num_key_value_heads
        shape = (
            config.num_hidden_layers,
            size.pages if size.whole else size.pages + 1,
            self.kv_heads,
            size.page_tokens,
            config.head_dim,
        )
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.groups = config.num_attention_heads // self.kv_heads
        self._tables: tuple[Tensor, Tensor] | None = None
        """Page tables and lengths of a batch whose attention is the kernel's."""

    @property
    def page_bytes(self) -> int:
        """Size of a page: keys and values of all layers."""
        return 2 * self.keys[:, 0].numel() * self.keys.itemsize

    def aim(
        self,
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> Tensor:
        """Aim at `width` new tokens for each row of a batch; return their positions (B * width,).

        `tables` holds each row's pages, `starts` how many tokens it has already, `ends` how many it will have. New
        tokens are laid out row by row. Rows with fewer of them are padded behind; what padding writes is overwritten
        before it is ever attended to, or lies where nobody reads.
        """
        device = self.keys.device
        self.rows, self.width, self._tables = len(tables), width, None
        start = torch.tensor(starts, device=device)
        positions = start[:, None] + torch.arange(width, device=device)
        if self.size.whole:
            self._aim_at_whole([table[0] for table in tables], positions, max(ends))
        else:
            self._aim_at_small(tables, positions, ends, max(starts) + width)
        return positions.view(-1)

    def aim_at_tables(self, tables: Tensor, starts: Tensor) -> Tensor:
        """Aim at one new token for each row; return their positions (B,). Attention is `paged_attention`'s then.

        `tables` (B, P) int64 holds each row's pages, `starts` (B,) int64 how many tokens it has. Nothing here looks at
        what the tensors hold, so that a CUDA graph can record it.
        """
        size = self.size.page_tokens
        self.rows, self.width = len(starts), 1
        self._write_to(tables.gather(1, starts[:, None] // size), starts[:, None] % size)
        self._tables = tables, starts + 1
        return starts

    def _aim_at_whole(self, at: Sequence[int], positions: Tensor, reach: int) -> None:
        device = positions.device
        page = torch.tensor(at, device=device)[:, None]
        place = positions.clamp(max=self.size.page_tokens - 1)
        self._write_to(page, place)
        bias = self._bias(reach, place)
        first, count = min(at), max(at) + 1 - min(at)
        rows, pages = slice(None), slice(first, first + count)
        # Neighbours in order are read where they lie. So is a token each of rows that lie close together: what is computed
        # for those between them costs less than to gather keys and values. Any others are gathered.
        if list(at) == list(range(first, first + len(at))):
            self._parts = [_Part(rows, pages, reach, bias)]
        elif self.width == 1 and count <= 2 * len(at):
            among = page[:, 0] - first
            wide = bias.new_zeros(count, *bias.shape[1:]).index_copy_(0, among, bias)
            self._parts = [_Part(rows, pages, reach, wide, among)]
        else:
            self._parts = [_Part(rows, page[:, 0], reach, bias)]

    def _aim_at_small(
        self,
        tables: Sequence[Sequence[int]],
        positions: Tensor,
        ends: Sequence[int],
        furthest: int,
    ) -> None:
        device, size = positions.device, self.size.page_tokens
        counts = [-(-end // size) for end in ends]
        widest = -(-furthest // size)
        spill = [self.size.pages] * widest  # The page that nobody reads.
        table = torch.tensor(
            [[*pages[:widest], *spill[len(pages) :]] for pages in tables], device=device
        )
        self._write_to(table.gather(1, positions // size), positions % size)
        heads = torch.arange(self.kv_heads, device=device)[:, None]
        self._parts = []
        for rows in self._split(counts):
            count = max(counts[rows])
            # (B, kv_heads, P): so gathered, a row's heads have their positions side by side.
            index = table[rows, None, :count] * self.kv_heads + heads
            bias = self._bias(count * size, positions[rows])
            self._parts.append(_Part(rows, index.flatten(), count * size, bias))

    def _write_to(self, page: Tensor, place: Tensor) -> None:
        """Say where new tokens are written: at `place` (B, width) of `page` (B, width), or of (B, 1) that is all of a row's."""
        heads = torch.arange(self.kv_heads, device=place.device)
        of_heads = page[..., None] * self.kv_heads + heads
        places = of_heads * self.size.page_tokens + place[..., None]
        self.places = places.view(-1, self.kv_heads)

    def _bias(self, reach: int, positions: Tensor) -> Tensor:
        """Return what is added to the scores of new tokens at `positions` (B, width) with `reach` keys."""
        later = torch.arange(reach, device=positions.device) > positions[:, None, :, None]
        bias = torch.zeros(later.shape, dtype=self.keys.dtype, device=positions.device)
        return bias.masked_fill_(later, float("-inf"))

    def _split(self, counts: Sequence[int]) -> list[slice]:
        """Divide rows into runs whose keys and values, as long as the longest of the run, are gathered at once."""
        each = self.page_bytes // self.keys.shape[0]
        runs, first, longest = [], 0, 0
        for row, count in enumerate(counts):
            wider = max(longest, count)
            over = wider * (row + 1 - first) * each > GATHER_BYTES
            # Short rows beside a long one would be read as if they were as long.
            if row > first and (over or count * 2 < longest):
                runs.append(slice(first, row))
                first, wider = row, count
            longest = wider
        return [*runs, slice(first, len(counts))]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values (B * width, kv_heads, D) of the new tokens."""
        for stored, new in ((self.keys, k), (self.values, v)):
            rows = stored[layer].view(-1, stored.shape[-1])
            rows.index_copy_(0, self.places.view(-1), new.reshape(-1, stored.shape[-1]))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return what the new tokens' queries (B * width, heads, D) attend to: (B * width, heads * D)."""
        heads, dim = q.shape[1], q.shape[2]
        if self._tables is not None:
            from hud.engine.cuda.paged_attention import paged_attention  # Needs triton.

            found = paged_attention(q, self.keys[layer], self.values[layer], *self._tables)
            return found.view(self.rows, heads * dim)
        q = q.view(self.rows, self.width, heads, dim)
        parts = [
            self._attend(
                part,
                q[part.rows],
                self._read(self.keys, layer, part),
                self._read(self.values, layer, part),
            )
            for part in self._parts
        ]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended.reshape(self.rows * self.width, heads * dim)

    def _read(self, stored: Tensor, layer: int, part: _Part) -> Tensor:
        """Return the keys or values of a part's rows (B, kv_heads, reach, D)."""
        if self.size.whole:
            return stored[layer][part.pages, :, : part.reach]
        assert isinstance(part.pages, Tensor)
        gathered = stored[layer].view(-1, *stored.shape[-2:]).index_select(0, part.pages)
        return gathered.view(-1, self.kv_heads, part.reach, stored.shape[-1])

    def _attend(self, part: _Part, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.width > 1:
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys,
                values,
                attn_mask=part.bias,
                enable_gqa=self.groups > 1,
            )
            return attended.transpose(1, 2)
        if part.among is not None:
            q = q.new_zeros(len(keys), *q.shape[1:]).index_copy_(0, part.among, q)
        # One token for each row: two batched products, the group's queries together, copy no keys.
        grouped = q.reshape(len(q), self.kv_heads, self.groups, q.shape[-1])
        scores = torch.matmul(grouped, keys.transpose(-1, -2)) * q.shape[-1] ** -0.5
        weights = torch.softmax(scores.add_(part.bias), dim=-1, dtype=torch.float32).to(
            values.dtype
        )
        attended = torch.matmul(weights, values)
        return attended if part.among is None else attended.index_select(0, part.among)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of one page to another."""
        # A small one as a whole: how keys lie in it is for those to know who compute with them.
        tokens = slice(count if self.size.whole else None)
        self.keys[:, target, :, tokens] = self.keys[:, source, :, tokens]
        self.values[:, target, :, tokens] = self.values[:, source, :, tokens]
