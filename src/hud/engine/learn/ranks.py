"""The processes that train one model together, seen from one of them.

Each holds a part of every weight and computes a part of every batch. One alone holds all of it; several are `joined`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Ranks(Protocol):
    """The processes that train together, `index` being this one.

    What takes or gives whole tensors, and `told`, every rank must call, for the same tensors in the same order.
    """

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def index(self) -> int:
        """Which of them this is, from 0."""
        ...

    def told(self, mine: T) -> list[T]:
        """Return what each rank has to say, in their order."""
        ...

    def part(self, tensor: Tensor) -> Tensor:
        """Return what this rank holds of a tensor, sharing its memory."""
        ...

    def together(self, mine: Tensor, like: Tensor) -> Tensor:
        """Return, on every rank, the whole tensor of which each has the part that it has of `like`."""
        ...

    def cut(self, whole: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return this rank's part of a tensor that rank 0 has whole, cut and placed as `like` is."""
        ...

    def release(self, decoder: nn.Module) -> None:
        """Give back what a pass without gradients borrowed from other ranks."""
        ...


@dataclass(frozen=True)
class Alone:
    """One process trains, and has everything whole."""

    count: int = 1
    index: int = 0

    def told(self, mine: T) -> list[T]:
        return [mine]

    def part(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def together(self, mine: Tensor, like: Tensor) -> Tensor:
        return mine

    def cut(self, whole: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
        assert whole is not None
        return whole.detach().to(device=like.device, dtype=dtype)

    def release(self, decoder: nn.Module) -> None:
        pass
