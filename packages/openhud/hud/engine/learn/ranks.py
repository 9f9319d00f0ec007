"""The ranks of a training, from the view of one rank."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class Ranks:
    """One process alone, which holds every tensor whole; `process_group.ProcessGroup` overrides it for several.

    All but `local` and `release` are collective: every rank calls them, for the same tensors in the same order.
    """

    count = 1
    index = 0

    def gather(self, value: T) -> list[T]:
        """Return the objects of all ranks, in their order."""
        return [value]

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's shard of a tensor, sharing its memory."""
        return tensor.detach()

    def gather_tensor(self, shard: Tensor, like: Tensor) -> Tensor:
        """Return, on every rank, the whole tensor whose shards are cut as those of `like`."""
        return shard

    def shard(self, full: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return this rank's shard of a tensor that rank 0 has whole, cut and placed as `like` is."""
        assert full is not None
        return full.detach().to(device=like.device, dtype=dtype)

    def release(self, decoder: nn.Module) -> None:
        """Free the weights of other ranks that a pass without gradients gathered."""
