"""Forward passes of sequences over the cache: what is missing of their prompts, or one token each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hud.engine.kvcache import KVCache
from hud.engine.sequence import Request

if TYPE_CHECKING:
    from hud.engine.adapters import AdapterBank
    from hud.engine.folder import AnyDecoder
    from hud.engine.graphs import DecodeGraphs
    from hud.engine.schedule import Stretch


def prefill(
    decoder: AnyDecoder, cache: KVCache, batch: Sequence[Stretch], bank: AdapterBank | None = None
) -> tuple[list[Request], Tensor]:
    """Compute the stretches; return the sequences that lack nothing now, and the hidden states (B, H) they draw from."""
    batch = _in_order(cache, batch)
    width = max(one.count for one in batch)
    slots = [one.request.place for one in batch]
    starts = [len(slot.tokens) for slot in slots]
    new = [
        one.request.ids[start : start + one.count] for one, start in zip(batch, starts, strict=True)
    ]
    ends = [start + len(row) for start, row in zip(starts, new, strict=True)]
    positions = cache.aim([slot.pages for slot in slots], starts, ends, width)
    if bank is not None:
        bank.aim([one.request.adapter for one in batch], width)
    ids = [token for row in new for token in (*row, *[0] * (width - len(row)))]
    hidden = decoder.hidden_cached(torch.tensor(ids, device=decoder.device), positions, cache)
    whole, last = [], []
    for number, (one, row) in enumerate(zip(batch, new, strict=True)):
        # Not before it is computed: others may share what stands here.
        one.request.place.tokens.extend(row)
        if not one.request.missing:
            whole.append(one.request)
            last.append(number * width + len(row) - 1)
    return whole, hidden[torch.tensor(last, dtype=torch.long, device=decoder.device)]


def decode(
    decoder: AnyDecoder,
    cache: KVCache,
    batch: Sequence[Request],
    bank: AdapterBank | None = None,
    graphs: DecodeGraphs | None = None,
) -> tuple[list[Request], Tensor]:
    """Compute the one token that each sequence lacks; return them in another order, and their hidden states (B, H).

    With `graphs` by one that was recorded.
    """
    if cache.size.whole:
        return _decode_in_place(decoder, cache, batch, bank)
    ordered = sorted(batch, key=lambda request: len(request.place.tokens), reverse=True)
    ids = [
        request.token_ids[-1] if request.token_ids else request.prompt[-1] for request in ordered
    ]
    starts = [len(request.place.tokens) for request in ordered]
    tables = [request.place.pages for request in ordered]
    if bank is not None:
        bank.aim([request.adapter for request in ordered])
    if graphs is not None:
        hidden = graphs.run(ids, tables, starts)
    else:
        positions = cache.aim(tables, starts, [start + 1 for start in starts], 1)
        hidden = decoder.hidden_cached(torch.tensor(ids, device=decoder.device), positions, cache)
    for request, token in zip(ordered, ids, strict=True):
        request.place.tokens.append(token)
    return ordered, hidden


def _decode_in_place(
    decoder: AnyDecoder, cache: KVCache, batch: Sequence[Request], bank: AdapterBank | None
) -> tuple[list[Request], Tensor]:
    ordered = sorted(batch, key=lambda request: request.place.pages[0])
    rows = [request.place.pages[0] for request in ordered]
    count = rows[-1] + 1
    # Every row up to the last busy one, so that the cache is read where it lies; the others write where nobody reads.
    ids, starts, ends = [0] * count, [cache.size.page_tokens - 1] * count, [1] * count
    for row, request in zip(rows, ordered, strict=True):
        slot = request.place
        ids[row] = request.token_ids[-1] if request.token_ids else request.prompt[-1]
        starts[row], ends[row] = len(slot.tokens), len(slot.tokens) + 1
        slot.tokens.append(ids[row])
    if bank is not None:
        adapters = dict(zip(rows, (request.adapter for request in ordered), strict=True))
        bank.aim([adapters.get(row) for row in range(count)])
    tables = [(row,) for row in range(count)]
    positions = cache.aim(tables, starts, ends, 1)
    hidden = decoder.hidden_cached(torch.tensor(ids, device=decoder.device), positions, cache)
    if len(rows) < count:
        hidden = hidden[torch.tensor(rows, device=decoder.device)]
    return ordered, hidden


def _in_order(cache: KVCache, batch: Sequence[Stretch]) -> list[Stretch]:
    """Return whole pages as they lie, that neighbours may be read in place; of small ones, those with most tokens first."""
    if cache.size.whole:
        return sorted(batch, key=lambda one: one.request.place.pages[0])
    return sorted(batch, key=lambda one: len(one.request.place.tokens) + one.count, reverse=True)
