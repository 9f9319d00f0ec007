"""The adapters of many forks of one base, concatenated, so that each row of a batch is computed with its own (multi-LoRA).

    y = x Wᵀ + ((x Aᵀ) ∘ M) Bᵀ

A (C, in) and B (out, C) hold the low-rank matrices of all adapters, each in some of the C columns; M (N, C) is an adapter's
scale in its own columns of the rows that use it, and 0 elsewhere. So a layer costs two more products, however many forks
there are, and nothing is gathered (compare the gathered products of Punica, arXiv 2310.18547, for thousands of adapters).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hud.engine.lora import LoraLinear
from hud.engine.models.reference_decoder import ReferenceDecoder

AnyModule = TypeVar("AnyModule", bound=nn.Module)

_COLUMNS = 64
"""Initial columns; doubled whenever they do not suffice."""


@dataclass(frozen=True, eq=False)
class Adapter:
    """One version of one fork's adapter in the bank. Its keys and values are of no use to any other."""

    version: str | None
    """Its checkpoint."""
    columns: tuple[int, int] = field(default=(0, 0), repr=False)
    """First column, and the one after the last."""


class AdapterBank:
    """A decoder that computes each row with that row's adapter. No pass may run during `put` or `drop`."""

    def __init__(self, base: ReferenceDecoder) -> None:
        self.decoder = sharing(base, base.parameters())
        self._capacity = _COLUMNS
        self._held: set[Adapter] = set()
        self._layers: dict[str, _BankedLinear] = {}
        self.mask: Tensor | None = None
        """(N, C): each adapter's scale, where its rows meet its columns; None if no row has an adapter."""
        self._scales = torch.zeros(_COLUMNS, device=base.device)

    @torch.no_grad()
    def put(self, version: str | None, layers: Mapping[str, LoraLinear]) -> Adapter:
        """Copy the adapter of a fork's wrapped layers, by their names, into the bank."""
        rank = max((layer.lora_A.shape[0] for layer in layers.values()), default=0)
        adapter = Adapter(version, self._room(rank))
        start, end = adapter.columns
        for name, layer in layers.items():
            banked = self._layers.get(name) or self._wrap(name)
            banked.columns_in[start:end] = layer.lora_A
            banked.columns_out[:, start:end] = layer.lora_B
            self._scales[start:end] = layer.scale
        self._held.add(adapter)
        return adapter

    @torch.no_grad()
    def drop(self, adapter: Adapter) -> None:
        """Remove an adapter that no sequence uses any more."""
        self._held.remove(adapter)
        start, end = adapter.columns
        self._scales[start:end] = 0
        for layer in self._layers.values():
            # The next adapter in these columns may not wrap this layer.
            layer.columns_out[:, start:end] = 0

    @property
    def held(self) -> frozenset[Adapter]:
        """The adapters that are in it."""
        return frozenset(self._held)

    def aim(self, rows: Sequence[Adapter | None], width: int = 1) -> None:
        """Set the adapter of each row of the next pass, `width` tokens a row; None: the base alone."""
        mask = self.mask_of(rows)
        self.mask = mask if mask is None or width == 1 else mask.repeat_interleave(width, dim=0)

    def mask_of(self, rows: Sequence[Adapter | None]) -> Tensor | None:
        """Return the mask (N, C) of rows with these adapters; None if no row has one."""
        used = [adapter for adapter in dict.fromkeys(rows) if adapter is not None]
        if not used:
            return None
        table = torch.zeros(len(used) + 1, self._capacity)
        for number, adapter in enumerate(used):
            start, end = adapter.columns
            table[number, start:end] = 1
        places = {adapter: number for number, adapter in enumerate(used)}
        which = torch.tensor(
            [len(used) if row_adapter is None else places[row_adapter] for row_adapter in rows]
        )
        return table[which].to(self._scales.device) * self._scales

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that passes read besides the base's parameters; replaced when columns or layers are added."""
        layers = self._layers.values()
        return [
            self._scales,
            *(tensor for it in layers for tensor in (it.columns_in, it.columns_out)),
        ]

    @property
    def capacity(self) -> int:
        """Number of columns C."""
        return self._capacity

    def _room(self, rank: int) -> tuple[int, int]:
        """Return `rank` free consecutive columns."""
        start = 0
        for first, end in sorted(adapter.columns for adapter in self._held):
            if first - start >= rank:
                break
            start = max(start, end)
        while start + rank > self._capacity:
            self._widen()
        return start, start + rank

    def _widen(self) -> None:
        self._scales = F.pad(self._scales, (0, self._capacity))
        for layer in self._layers.values():
            layer.columns_in = F.pad(layer.columns_in, (0, 0, 0, self._capacity))
            layer.columns_out = F.pad(layer.columns_out, (0, self._capacity))
        self._capacity *= 2

    def _wrap(self, name: str) -> _BankedLinear:
        parent, _, last = name.rpartition(".")
        owner = self.decoder.get_submodule(parent)
        layer = self._layers[name] = _BankedLinear(getattr(owner, last), self, self._capacity)
        setattr(owner, last, layer)
        return layer


class _BankedLinear(nn.Module):
    """A linear layer with all adapters of it, in the layer's place."""

    columns_in: Tensor
    """A: (C, in)"""
    columns_out: Tensor
    """B: (out, C)"""

    def __init__(self, base: nn.Linear, bank: AdapterBank, capacity: int) -> None:
        super().__init__()
        self.base = base
        self._bank = (bank,)  # In a tuple: the bank's decoder is no part of the layer.
        weight = base.weight
        self.columns_in = weight.new_zeros(capacity, base.in_features)
        self.columns_out = weight.new_zeros(base.out_features, capacity)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output (N, out) for x (N, in), each row with its adapter."""
        y: Tensor = self.base(x)
        mask = self._bank[0].mask
        if mask is None:
            return y
        low = F.linear(x, self.columns_in) * mask.to(x.dtype)
        return y.addmm_(low, self.columns_out.T)


def sharing(decoder: AnyModule, shared: Iterable[nn.Parameter]) -> AnyModule:
    """Return a copy of a module that computes with the very same `shared` parameters, and with copies of all others."""
    return deepcopy(decoder, {id(parameter): parameter for parameter in shared})
