"""Forward passes of sequences over the cache: what is missing of their prompts, or one token each, or some, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hud.engine.cpu.fused_decoder import FusedDecoder
from hud.engine.sample.kv_cache import KVCache
from hud.engine.sample.request import Request

if TYPE_CHECKING:
    from hud.engine.cuda.decode_graphs import DecodeGraphs
    from hud.engine.pretrained import AnyDecoder
    from hud.engine.sample.adapter_bank import AdapterBank
    from hud.engine.sample.scheduler import Stretch
    from hud.engine.sample.slots import Slot


def prefill(
    decoder: AnyDecoder | FusedDecoder,
    cache: KVCache,
    batch: Sequence[Stretch],
    bank: AdapterBank | None = None,
) -> tuple[list[Request], Tensor]:
    """Compute the stretches; return the sequences that lack nothing now, and the hidden states (B, H) they draw from."""
    batch = sorted(batch, key=lambda one: _rank(cache, one.request.place, one.count))
    width = max(one.count for one in batch)
    slots = [one.request.place for one in batch]
    starts = [len(slot.tokens) for slot in slots]
    new = [
        one.request.ids[start : start + one.count] for one, start in zip(batch, starts, strict=True)
    ]
    tables = [slot.pages for slot in slots]
    if isinstance(decoder, FusedDecoder):
        hidden = decoder.run(new, tables, starts, cache)
        lasts = list(accumulate(map(len, new)))
    else:
        ends = [start + len(row) for start, row in zip(starts, new, strict=True)]
        positions = cache.aim(tables, starts, ends, width)
        if bank is not None:
            bank.aim([one.request.adapter for one in batch], width)
        ids = [token for row in new for token in (*row, *[0] * (width - len(row)))]
        hidden = decoder.hidden_cached(torch.tensor(ids, device=decoder.device), positions, cache)
        lasts = [number * width + len(row) for number, row in enumerate(new)]
    whole, last = [], []
    for one, row, end in zip(batch, new, lasts, strict=True):
        # Not before it is computed: others may share what stands here.
        one.request.place.tokens.extend(row)
        if not one.request.missing:
            whole.append(one.request)
            last.append(end - 1)
    return whole, hidden[torch.tensor(last, dtype=torch.long, device=hidden.device)]


def decode(
    decoder: AnyDecoder | FusedDecoder,
    cache: KVCache,
    batch: Sequence[Request],
    bank: AdapterBank | None = None,
    graphs: DecodeGraphs | None = None,
) -> tuple[list[Request], Tensor]:
    """Compute the one token that each sequence lacks; return them in another order, and their hidden states (B, H).

    With `graphs` by one that was recorded.
    """
    ordered = sorted(batch, key=lambda request: _rank(cache, request.place, 1))
    ids = [request.last for request in ordered]
    starts = [len(request.place.tokens) for request in ordered]
    tables = [request.place.pages for request in ordered]
    if bank is not None:
        bank.aim([request.adapter for request in ordered])
    if graphs is not None:
        hidden = graphs.run(ids, tables, starts)
    elif isinstance(decoder, FusedDecoder):
        hidden = decoder.run([[token] for token in ids], tables, starts, cache)
    else:
        positions = cache.aim(tables, starts, [start + 1 for start in starts], 1)
        hidden = decoder.hidden_cached(torch.tensor(ids, device=decoder.device), positions, cache)
    for request, token in zip(ordered, ids, strict=True):
        request.place.tokens.append(token)
    return ordered, hidden


def draw_on(
    decoder: FusedDecoder,
    cache: KVCache,
    batch: Sequence[Request],
    count: int,
    *,
    until_end: bool,
) -> list[tuple[list[int], list[float]]]:
    """Draw up to `count` tokens for each sequence, one by one; return them and their logprobs, and write down what is cached.

    There is a place for each of them, and the same tokens end all of the sequences. See `FusedDecoder.draw_on`.
    """
    ids = [request.last for request in batch]
    drawn, logprobs, counts = decoder.draw_on(
        ids,
        [request.place.pages for request in batch],
        [len(request.place.tokens) for request in batch],
        cache,
        [request.params.effective_temperature for request in batch],
        [request.uniforms.coming(count) for request in batch],
        [request.most - len(request.token_ids) for request in batch],
        batch[0].stop_ids,
        until_end=until_end,
    )
    found = []
    for request, first, tokens, chances, number in zip(
        batch, ids, drawn.tolist(), logprobs.tolist(), counts.tolist(), strict=True
    ):
        request.uniforms.skip(number)
        request.place.tokens += [first, *tokens[: number - 1]]
        found.append((tokens[:number], chances[:number]))
    return found


def _rank(cache: KVCache, slot: Slot, count: int) -> int:
    """Return where a row belongs: whole pages as they lie, to be read there; of small ones, those with most tokens first."""
    return slot.pages[0] if cache.size.whole else -(len(slot.tokens) + count)
