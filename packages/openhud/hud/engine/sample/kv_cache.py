"""The key-value cache: pages of a fixed number of positions, all allocated at once. A CPU's take memory when first written to.

Each sequence has a table of pages. Before a forward pass, `aim` says where new tokens belong; `write` then stores their keys
and values, and `attend` gathers the pages of each row, a part of the batch at a time. The prefix cache tracks the tokens
of each page.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.sample.prefix_cache import Placement, Slot
from hud.errors import DeviceMemoryError, UsageError

PAGE_TOKENS = 64
"""Positions in a page."""
SLOT_STATES = 3
"""Recurrent states for each active sequence: its own, and two saved ones, such as those of conversations between two turns."""
GATHER_BYTES = 64 << 20
"""Most bytes of keys and values that one layer gathers at a time; a single sequence may need more."""


@dataclass(frozen=True)
class CacheSize:
    """Dimensions of a cache."""

    pages: int
    """Pages for sequences. One more is allocated, for what padding writes."""
    page_tokens: int
    max_context: int
    """Most tokens of one sequence."""
    states: int = 0
    """Recurrent states, active and saved ones; 0: the model has no recurrent layers."""

    @classmethod
    def within(
        cls,
        budget: int,
        config: DecoderConfig,
        dtype: torch.dtype,
        *,
        slots: int,
        max_context: int | None,
    ) -> CacheSize:
        """Return the dimensions of a cache of at most `budget` bytes for `slots` sequences at a time.

        `max_context` None: the model's, as far as the budget holds it. Raises `UsageError` if one sequence of
        `max_context` tokens does not fit.
        """
        context = _context(config, max_context)
        page, state = bytes_for(config, 1, PAGE_TOKENS, dtype), state_bytes(config, dtype)
        length = PAGE_TOKENS if max_context is None else context
        least = (-(-length // PAGE_TOKENS) + 1) * page
        states = 0
        if state:
            # At most half of the memory, and what one conversation's keys and values leave.
            room = min(budget // 2, budget - least)
            states = min(slots * SLOT_STATES, max(1, room // state))
        pages = min((budget - states * state) // page - 1, _most_pages(slots, context))
        most = min(context, pages * PAGE_TOKENS)
        if pages < 1 or (max_context is not None and most < context):
            needed = least + min(states, 1) * state
            raise UsageError(
                f"One conversation of {length:,} tokens needs {needed / 2**20:,.1f} MiB of key-value "
                f"cache; there are {budget / 2**20:,.1f} MiB for it. Lower --max-context, raise --kv-cache, or free memory."
            )
        return cls(pages, PAGE_TOKENS, most, states)

    def nbytes(self, config: DecoderConfig, dtype: torch.dtype) -> int:
        """Return the size of the cache in bytes."""
        pages = bytes_for(config, self.pages + 1, self.page_tokens, dtype)
        return pages + self.states * state_bytes(config, dtype)


def most_bytes(
    config: DecoderConfig, dtype: torch.dtype, *, slots: int, max_context: int | None
) -> int:
    """Return the size of the largest useful cache: `slots` sequences of `max_context` tokens."""
    pages = _most_pages(slots, _context(config, max_context))
    states = slots * SLOT_STATES * state_bytes(config, dtype)
    return bytes_for(config, pages + 1, PAGE_TOKENS, dtype) + states


def _context(config: DecoderConfig, max_context: int | None) -> int:
    longest = config.max_position_embeddings
    return longest if max_context is None else min(max_context, longest)


def _most_pages(slots: int, context: int) -> int:
    return slots * -(-context // PAGE_TOKENS)


def bytes_for(config: DecoderConfig, pages: int, page_tokens: int, dtype: torch.dtype) -> int:
    """Return the size in bytes of the keys and values of `pages` pages, all layers together."""
    elements = config.key_layers * pages * config.num_key_value_heads * page_tokens
    return elements * (config.head_dim + config.value_width) * dtype.itemsize


def state_bytes(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Return the size in bytes of the recurrent state of one sequence, all layers together; 0: it has none."""
    shape = config.recurrent
    if shape is None:
        return 0
    matrix = shape.heads * shape.key_dim * shape.value_dim * state_type(dtype).itemsize
    return shape.layers * (matrix + shape.memory * shape.channels * dtype.itemsize)


def state_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the states of a model that computes in `dtype`: a sum over all tokens needs float32."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class _Part:
    """Consecutive rows of a batch whose pages are gathered together."""

    rows: slice
    pages: Tensor
    """(rows * kv_heads * pages,) int64: page and head of each block of keys, flat, in the order of positions."""
    reach: int
    """Keys for each row."""
    bias: Tensor
    """(rows, 1, width, reach): minus infinity where a new token may not attend to a key, else 0."""
    positions: Tensor
    """(rows, width): positions of the new tokens."""


class KVCache:
    """Keys and values (layers, pages + 1, kv_heads, page_tokens, D), each with a D of its own; the last page takes what padding writes."""

    def __init__(
        self, config: DecoderConfig, size: CacheSize, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.size = size
        self.kv_heads = config.num_key_value_heads
        self.groups = config.num_attention_heads // self.kv_heads
        shape = (config.key_layers, size.pages + 1, self.kv_heads, size.page_tokens)
        self.keys = lazy_zeros((*shape, config.head_dim), dtype, device)
        self.values = lazy_zeros((*shape, config.value_width), dtype, device)
        self._experts: Tensor | None = None
        """(pages + 1, page_tokens, routers, k) int16: router choices of the tokens, where a decoder writes them."""

    @property
    def nbytes(self) -> int:
        """Size of all keys and values, which never changes."""
        return self.keys.nbytes + self.values.nbytes

    def free(self) -> None:
        """Free the memory: nothing is computed with this cache any more."""
        self.keys, self.values = self.keys.new_empty(0), self.values.new_empty(0)

    @property
    def page_bytes(self) -> int:
        """Size of a page: keys and values of all layers."""
        return self.keys[:, 0].nbytes + self.values[:, 0].nbytes

    def aim(
        self,
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> Tensor:
        """Prepare for `width` new tokens in each row of a batch; return their positions (B * width,).

        `tables` holds each row's pages, `starts` its cached tokens, `ends` its tokens after the pass. New tokens are laid
        out row by row. Rows with fewer than `width` are padded behind; what padding writes is overwritten before any token
        attends to it, or lies in the last page.
        """
        device, size = self.keys.device, self.size.page_tokens
        self.rows, self.width = len(tables), width
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(
            width, device=device
        )
        widest = -(-(max(starts) + width) // size)
        spill = [self.size.pages] * widest
        table = torch.tensor(
            [[*pages[:widest], *spill[len(pages) :]] for pages in tables], device=device
        )
        self._write_to(table.gather(1, positions // size), positions % size)
        heads = torch.arange(self.kv_heads, device=device)[:, None]
        counts = [-(-end // size) for end in ends]
        self._parts = []
        for rows in self._split(counts):
            count = max(counts[rows])
            # (B, kv_heads, P): so gathered, the positions of a row's head are contiguous.
            index = table[rows, None, :count] * self.kv_heads + heads
            bias = self._bias(count * size, positions[rows])
            part = _Part(rows, index.flatten(), count * size, bias, positions[rows])
            self._parts.append(part)
        return positions.view(-1)

    def _write_to(self, page: Tensor, offset: Tensor) -> None:
        """Set where new tokens are written: at `offset` (B, width) of `page` (B, width)."""
        heads = torch.arange(self.kv_heads, device=offset.device)
        self._tokens = page, offset
        blocks = page[..., None] * self.kv_heads + heads
        self._places = (blocks * self.size.page_tokens + offset[..., None]).flatten()

    def _bias(self, reach: int, positions: Tensor) -> Tensor:
        """Return the additive causal mask of new tokens at `positions` (B, width) over `reach` keys."""
        later = torch.arange(reach, device=positions.device) > positions[:, None, :, None]
        bias = torch.zeros(later.shape, dtype=self.keys.dtype, device=positions.device)
        return bias.masked_fill_(later, float("-inf"))

    def _split(self, counts: Sequence[int]) -> list[slice]:
        """Divide rows of `counts` pages into runs that are gathered at once, as long as the longest of the run."""
        layer_bytes = self.page_bytes // self.keys.shape[0]
        runs, first, longest = [], 0, 0
        for row, count in enumerate(counts):
            wider = max(longest, count)
            over = wider * (row + 1 - first) * layer_bytes > GATHER_BYTES
            # Short rows next to a long one would be gathered as if they were as long.
            if row > first and (over or count * 2 < longest):
                runs.append(slice(first, row))
                first, wider = row, count
            longest = wider
        return [*runs, slice(first, len(counts))]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values (B * width, kv_heads, D) of the new tokens."""
        for stored, new in ((self.keys, k), (self.values, v)):
            rows = stored[layer].view(-1, stored.shape[-1])
            rows.index_copy_(0, self._places, new.reshape(-1, stored.shape[-1]))

    def write_experts(self, experts: Tensor) -> None:
        """Store the router choices (B * width, routers, k) of the new tokens."""
        if self._experts is None:
            shape = (self.size.pages + 1, self.size.page_tokens, *experts.shape[1:])
            self._experts = lazy_zeros(shape, torch.int16, torch.device("cpu"))
        page, offset = (place.flatten().cpu() for place in self._tokens)
        self._experts[page, offset] = experts.cpu()

    def experts_of(self, slot: Slot) -> Tensor | None:
        """Return the router choices (T, routers, k) of a slot's tokens; None: they are not kept."""
        if self._experts is None:
            return None
        return self._experts[slot.pages].flatten(0, 1)[: len(slot.tokens)].clone()

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Return the attention output (B * width, heads * D) of the new tokens' queries (B * width, heads, D)."""
        return self.attend_within(layer, q, None)

    def attend_within(self, layer: int, q: Tensor, window: int | None) -> Tensor:
        """Return what `attend` returns, of attention to the last `window` tokens alone; None: to all."""
        q = q.view(self.rows, self.width, *q.shape[1:])
        parts = [
            self._attend(layer, part, self._within(part, window), q[part.rows])
            for part in self._parts
        ]
        return torch.cat(parts).flatten(0, 1).flatten(1)

    def _within(self, part: _Part, window: int | None) -> Tensor:
        """Return the mask of a part, without keys before the window."""
        if window is None or window >= part.reach:
            return part.bias
        keys = torch.arange(part.reach, device=part.bias.device)
        before = keys <= part.positions[:, None, :, None] - window
        return part.bias.masked_fill(before, float("-inf"))

    def _attend(self, layer: int, part: _Part, bias: Tensor, q: Tensor) -> Tensor:
        keys, values = (
            stored[layer]
            .view(-1, *stored.shape[-2:])
            .index_select(0, part.pages)
            .view(-1, self.kv_heads, part.reach, stored.shape[-1])
            for stored in (self.keys, self.values)
        )
        if self.width > 1:
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=bias, enable_gqa=self.groups > 1
            )
            return attended.transpose(1, 2)
        # One token a row: the queries of a group stand in for tokens, so that no keys are copied.
        grouped = q.reshape(len(q), self.kv_heads, self.groups, q.shape[-1])
        attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=bias)
        return attended.reshape(*q.shape[:-1], -1)

    def seat(self, slots: Sequence[Slot]) -> None:
        """Note the slots of the rows of the next pass; called before `aim`."""

    def fill(self, placement: Placement) -> None:
        """Copy what a new slot shares with another one and will write to."""
        if placement.copied is not None:
            self.copy(*placement.copied)

    def copy(self, source: int, target: int) -> None:
        """Copy one page to another."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]
        if self._experts is not None:
            self._experts[target] = self._experts[source]


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros; on a CPU without touching their memory, which `torch.zeros` fills. Raises `DeviceMemoryError` there."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = prod(shape)
    try:
        memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DeviceMemoryError(
            f"This machine has no {count * dtype.itemsize / 2**20:,.0f} MiB of memory for the key-value cache. "
            "Lower --kv-cache, or end other programs."
        ) from error
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
