"""Packed sequences for layers that carry a state from token to token, as chunks that form a tree.

Each sequence is cut into chunks. A chunk begins with the state at the end of the chunk before it, the first one of a sequence
with that of the sequence which it continues, or with none: so states are reset at the borders of sequences. Chunks that are
equally far from the first one of their tree, a **level**, are computed together. See `attention.SharedPacking` for trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_TOKENS = 64
"""Most tokens of a chunk: within it, each token is compared with each earlier one."""
_LEAST = 16


@dataclass(frozen=True)
class Level:
    """Chunks that are computed together: those from `start` to `end`, in the order of the packing."""

    start: int
    end: int
    before: Tensor | None
    """(end - start,) int64: the chunk of the level before that each continues; None: the first ones, in order."""
    last: Tensor
    """(E,) int64: chunks of the level that are the last ones of their sequences."""


class StatePacking:
    """Places of the sequences' tokens in a pass, by chunk, and the tokens that precede each sequence."""

    def __init__(
        self,
        starts: Sequence[int],
        lengths: Sequence[int],
        tokens: int,
        memory: int,
        device: torch.device,
        prefixes: Sequence[int] | None = None,
    ) -> None:
        """`starts` and `lengths`: where each sequence is among the `tokens` of the pass; others are padding.

        `memory`: how many tokens before it a token's convolution reads. `prefixes`: the earlier sequence that each continues,
        or -1; None: none does.
        """
        self.tokens, self.sequences = tokens, len(starts)
        self.chunk = _chunk_tokens(max(lengths))
        prefixes = prefixes or [-1] * len(starts)
        self._lay_out_chunks(starts, lengths, prefixes, device)
        self._lay_out_convolution(starts, lengths, prefixes, memory, device)

    def _lay_out_chunks(
        self,
        starts: Sequence[int],
        lengths: Sequence[int],
        prefixes: Sequence[int],
        device: torch.device,
    ) -> None:
        levels: list[
            list[tuple[int, int, int]]
        ] = []  # Sequence, its first token in the chunk, and the chunk continued.
        ends: list[tuple[int, int]] = []  # Level, and chunk in it, at the end of each sequence.
        for sequence, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
            level, before = ends[prefix] if prefix >= 0 else (-1, -1)
            for first in range(0, length, self.chunk):
                level += 1
                if level == len(levels):
                    levels.append([])
                levels[level].append((sequence, first, before))
                before = len(levels[level]) - 1
            ends.append((level, before))
        self.levels: list[Level] = []
        places: list[Tensor] = []
        lasts: list[int] = []
        token_places = torch.zeros(self.tokens, dtype=torch.int64)
        steps = torch.arange(self.chunk)
        for number, chunks in enumerate(levels):
            start, last = len(places), []
            for place, (sequence, first, _) in enumerate(chunks):
                count = min(self.chunk, lengths[sequence] - first)
                own = starts[sequence] + first + steps
                token_places[own[:count]] = len(places) * self.chunk + steps[:count]
                places.append(own.masked_fill(steps >= count, -1))
                if ends[sequence] == (number, place):
                    last.append(place)
                    lasts.append(sequence)
            sources = [chunk[2] for chunk in chunks]
            in_order = number == 0 or sources == list(range(len(sources)))
            self.levels.append(
                Level(
                    start,
                    len(places),
                    None if in_order else torch.tensor(sources, device=device),
                    torch.tensor(last, dtype=torch.int64, device=device),
                )
            )
        index = torch.stack(places)
        self.real = (index >= 0).to(device)
        """(chunks, chunk): False for padding."""
        self._index = index.clamp_min(0).flatten().to(device)
        self._token_places = token_places.to(device)
        self.roots = torch.tensor([chunk[0] for chunk in levels[0]], device=device)
        """(R,) int64: the sequence of each chunk of the first level."""
        order = torch.empty(len(lasts), dtype=torch.int64)
        order[torch.tensor(lasts)] = torch.arange(len(lasts))
        self.last_order = order.to(device)
        """(S,) int64: place of each sequence's last chunk among those of all levels."""

    def _lay_out_convolution(
        self,
        starts: Sequence[int],
        lengths: Sequence[int],
        prefixes: Sequence[int],
        memory: int,
        device: torch.device,
    ) -> None:
        inputs: list[Tensor] = []
        tails: list[Tensor] = []
        outputs = torch.zeros(self.tokens, dtype=torch.int64)
        length_so_far = 0
        for sequence, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            first = self.tokens + sequence * memory
            before = (
                tails[prefixes[sequence]]
                if prefixes[sequence] >= 0
                else torch.arange(first, first + memory)
            )
            own = torch.cat((before, torch.arange(start, start + length)))
            outputs[start : start + length] = torch.arange(length) + length_so_far
            length_so_far += len(own)
            inputs.append(own)
            tails.append(own[length:])
        self.inputs = torch.cat(inputs).to(device)
        """(S * memory + real tokens,) int64: what precedes each sequence, and its tokens; the states from `tokens` on."""
        self.outputs = outputs.to(device)
        """(tokens,) int64: the input from which each token's convolution reads on."""
        self.tails = torch.stack(tails).to(device)
        """(S, memory) int64: the last inputs of each sequence."""

    def chunks(self, x: Tensor) -> Tensor:
        """(T, heads, ...) to (chunks, heads, chunk, ...); padding repeats a token."""
        cut = x.index_select(0, self._index).view(-1, self.chunk, *x.shape[1:])
        return cut.transpose(1, 2)

    def joined(self, x: Tensor) -> Tensor:
        """(chunks, heads, chunk, D) to (T, heads, D)."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self._token_places)


def _chunk_tokens(longest: int) -> int:
    chunk = _LEAST
    while chunk < min(longest, CHUNK_TOKENS):
        chunk *= 2
    return chunk
