"""Sampling with recurrent layers (`DecoderConfig.recurrent`): their states lie in the cache beside keys and values, a row a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.models.gated_delta import chunked, convolution_states, convolved, step
from hud.engine.models.state_packing import StatePacking
from hud.engine.sample.kv_cache import CacheSize, KVCache, lazy_zeros, state_type
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.prefix_cache import Placement, PrefixCache, Slot
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Sampled
from hud.engine.sample.saved_states import SavedStates, states_of, with_pictures
from hud.engine.sample.scheduler import Chunk


class HybridCache(KVCache):
    """Keys and values of the layers that have them, and states of the others: `foreign.hybrid_decoder.LayerStates`."""

    def __init__(
        self, config: DecoderConfig, size: CacheSize, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, size, dtype, device)
        shape = config.recurrent
        assert shape is not None
        self.memory = shape.memory
        rows = shape.layers, size.states
        self.inputs = lazy_zeros((*rows, shape.memory, shape.channels), dtype, device)
        """(layers, states, memory, D): last inputs of each layer's convolution."""
        matrix = (shape.heads, shape.key_dim, shape.value_dim)
        self.states = lazy_zeros((*rows, *matrix), state_type(dtype), device)
        """(layers, states, heads, K, V)."""

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.inputs.nbytes + self.states.nbytes

    def free(self) -> None:
        super().free()
        self.inputs, self.states = self.inputs.new_empty(0), self.states.new_empty(0)

    def seat(self, slots: Sequence[Slot]) -> None:
        rows = [states_of(slot).current for slot in slots]
        self._rows = torch.tensor(rows, device=self.states.device)

    def aim(
        self,
        tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        ends: Sequence[int],
        width: int,
    ) -> Tensor:
        positions = super().aim(tables, starts, ends, width)
        new = [row for row, start in enumerate(starts) if not start]
        if new:
            for table in (self.inputs, self.states):
                table.index_fill_(1, self._rows[new], 0)
        self._packing = None
        if width > 1:
            counts = [end - start for start, end in zip(starts, ends, strict=True)]
            firsts = range(0, len(starts) * width, width)
            device = self.states.device
            self._packing = StatePacking(firsts, counts, len(positions), self.memory, device)
        return positions

    def convolve(self, layer: int, x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution (B * width, D) of the new tokens' inputs (B * width, D), and keep the last ones."""
        before = self.inputs[layer].index_select(0, self._rows)
        if self._packing is None:
            inputs = torch.cat((before, x[:, None]), 1)
            self.inputs[layer].index_copy_(0, self._rows, inputs[:, 1:])
            dtype = state_type(x.dtype)
            return (inputs.to(dtype) * weight.mT.to(dtype)).sum(1).to(x.dtype)
        after = convolution_states(x, self._packing, before)
        self.inputs[layer].index_copy_(0, self._rows, after)
        return convolved(x, weight, self._packing, before)

    def gated_delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
    ) -> Tensor:
        """Return the outputs (B * width, heads, V) of the new tokens, and bring the states behind them."""
        states = self.states[layer].index_select(0, self._rows)
        if self._packing is None:
            output, after = step(q, k, v, g, beta, states), states
        else:
            output, last = chunked(q, k, v, g, beta, self._packing, states, final=True)
            assert last is not None
            after = last
        self.states[layer].index_copy_(0, self._rows, after)
        return output

    def fill(self, placement: Placement) -> None:
        super().fill(placement)
        if placement.state is not None:
            self.copy_state(*placement.state)

    def copy_state(self, source: int, target: int) -> None:
        """Copy one state to another row."""
        for table in (self.inputs, self.states):
            table[:, target] = table[:, source]


class HybridRunner(PlainRunner):
    """Computes with recurrent layers, and saves states where the prefix cache plans to; reads pictures where its decoder does."""

    cache: HybridCache
    cache_type: ClassVar[type[KVCache]] = HybridCache
    prefix_cache_type: ClassVar[type[PrefixCache]] = SavedStates

    def use(self, decoder: Decoder) -> None:
        super().use(decoder)
        self.refresh()

    def refresh(self) -> None:
        # Features of pictures are those of the tower's weights.
        self._picture_prompts: WeakKeyDictionary[Request, Any] = WeakKeyDictionary()

    def step(self, chunks: Sequence[Chunk]) -> Sampled:
        sampled = super().step(chunks)
        for chunk in chunks:
            slot, pictures = chunk.request.place, chunk.request.pictures
            if pictures and pictures[-1].start >= len(slot.tokens) - chunk.count:
                slot.tokens = with_pictures(slot.tokens, pictures)
            states = states_of(slot)
            row = states.planned.pop(len(slot.tokens), None)
            if row is not None and states.current is not None:
                self.cache.copy_state(states.current, row)
                states.saved[len(slot.tokens)] = row
        return sampled

    def seat(self, requests: Sequence[Request]) -> None:
        super().seat(requests)
        self._requests = requests

    def hidden(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        if not any(request.pictures for request in self._requests):
            return super().hidden(input_ids, positions)
        prompts = [self._picture_prompt(request) for request in self._requests]
        decoder: Any = self.decoder
        output: Tensor = decoder.hidden_cached_with_pictures(
            input_ids, positions, self.cache, prompts
        )
        return output

    def _picture_prompt(self, request: Request) -> Any:
        """Return the `PicturePrompt` of a request; None: it has no pictures."""
        if not request.pictures:
            return None
        if request not in self._picture_prompts:
            decoder: Any = self.decoder
            prompt = decoder.picture_prompt(request.prompt, request.pictures)
            self._picture_prompts[request] = prompt
        return self._picture_prompts[request]
