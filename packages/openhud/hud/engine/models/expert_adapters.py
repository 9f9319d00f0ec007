"""LoRA on fused experts: a low-rank term for each expert of a stacked weight, in PEFT's layout (`target_parameters`).

    W_e + (alpha / rank) B_e A_e        A: (experts * rank, in), B: (out, rank * experts), B = 0 at the start

A stacked weight is (experts, out, in) or, of modules with `is_transposed`, (experts, in, out). The term is added to it in each
forward pass, so a pass holds one more weight of a layer's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

_merged: ContextVar[dict[int, Tensor] | None] = ContextVar("_merged", default=None)
"""Weights with their terms, by adapter, within one forward pass of a module: some read theirs once for each expert."""


class LoraExperts(nn.Module):
    """The trained low-rank terms of a frozen stacked weight."""

    def __init__(
        self,
        weight: Tensor,
        rank: int,
        scale: float,
        generator: torch.Generator,
        *,
        transposed: bool,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.enabled = True
        self.transposed = transposed
        self.experts = len(weight)
        out, inner = (weight.shape[2], weight.shape[1]) if transposed else weight.shape[1:]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        bound = 1 / math.sqrt(inner)  # As `LoraLinear` draws it.
        drawn = torch.rand(self.experts * rank, inner, generator=generator, dtype=torch.float32)
        self.lora_A = nn.Parameter(((drawn * 2 - 1) * bound).to(device=weight.device, dtype=dtype))
        self.lora_B = nn.Parameter(
            torch.zeros(out, rank * self.experts, device=weight.device, dtype=dtype)
        )

    @property
    def rank(self) -> int:
        """Rank of each expert's term."""
        return self.lora_A.shape[0] // self.experts

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight that is computed with."""
        if not self.enabled:
            return weight
        merged = _merged.get()
        if merged is None:
            return weight + self.delta().to(weight.dtype)
        if id(self) not in merged:
            merged[id(self)] = weight + self.delta().to(weight.dtype)
        return merged[id(self)]

    def delta(self) -> Tensor:
        """Return the terms of all experts, in the shape of the weight."""
        first = self.lora_A.view(self.experts, self.rank, -1)
        second = self.lora_B.view(-1, self.rank, self.experts).permute(2, 0, 1)
        terms = (second @ first) * self.scale
        return terms.transpose(1, 2) if self.transposed else terms


class _Forward:
    """The forward method of a module with adapters; a copied module has a copy of its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        token = _merged.set({})
        try:
            return type(self.module).forward(self.module, *arguments, **settings)
        finally:
            _merged.reset(token)


def expert_weights(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield each stacked weight of a model: its module's name, the module, and its own name there."""
    for name, owner in module.named_modules():
        if isinstance(owner, parametrize.ParametrizationList):
            continue
        for own, parameter in [*owner.named_parameters(recurse=False)]:
            if parameter.ndim == 3 and own != "weight":  # Convolutions have such.
                yield name, owner, own
        for own in [*adapters_of(owner)]:
            yield name, owner, own


def adapters_of(owner: nn.Module) -> dict[str, LoraExperts]:
    """Return the adapters of a module's stacked weights, by the weights' names, in the order of their definition."""
    adapted: Any = getattr(owner, "parametrizations", {})
    return {own: chain[0] for own, chain in adapted.items() if isinstance(chain[0], LoraExperts)}


def adapt(owner: nn.Module, own: str, rank: int, scale: float, generator: torch.Generator) -> None:
    """Put an adapter on a stacked weight."""
    transposed = bool(getattr(owner, "is_transposed", False))
    weight = getattr(owner, own)
    adapter = LoraExperts(weight, rank, scale, generator, transposed=transposed)
    parametrize.register_parametrization(owner, own, adapter, unsafe=True)
    owner.forward = _Forward(owner)


def fold(owner: nn.Module) -> None:
    """Fold the adapters of a module into its weights, for good."""
    for own in adapters_of(owner):
        parametrize.remove_parametrizations(owner, own, leave_parametrized=True)
    del owner.forward
