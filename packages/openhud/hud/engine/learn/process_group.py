"""The ranks of one training, started by torchrun: their process group and its collectives.

Tensors are sharded along their first dimension (`DTensor`). Counts and norms travel as objects, on the host.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from hud.engine.learn.ranks import Ranks
from hud.errors import UsageError

T = TypeVar("T")

_PATIENCE = timedelta(days=365)
"""Longest wait of a rank for the next call: rollouts between two steps may take hours. Where another rank dies, torchrun ends
all of them."""


class ProcessGroup(Ranks):
    """Several processes, each started by torchrun; see `Ranks`."""

    def __init__(self, device: torch.device, mesh: DeviceMesh, control: dist.ProcessGroup) -> None:
        self.device = device
        """Device of this rank."""
        self.mesh = mesh
        """All ranks, in one dimension."""
        self.count, self.index = mesh.size(), mesh.get_rank()
        self._control = control

    def gather(self, value: T) -> list[T]:
        everyone: list[T] = [value] * self.count
        dist.all_gather_object(everyone, value, group=self._control)
        return everyone

    def broadcast(self, value: T | None = None) -> T:
        """Return the object of rank 0; the others wait for it up to `_PATIENCE`."""
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        received: T = box[0]
        return received

    def local(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def gather_tensor(self, shard: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return shard
        placed = DTensor.from_local(
            shard,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
        return placed.full_tensor()

    def shard(self, full: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
        assert isinstance(like, DTensor)
        if full is None:
            full = torch.empty(like.shape, dtype=dtype, device=like.device)
        full = full.detach().to(device=like.device, dtype=dtype)
        return distribute_tensor(full, like.device_mesh, like.placements).to_local()

    def release(self, decoder: nn.Module) -> None:
        if isinstance(decoder, FSDPModule):
            decoder.reshard()


def join(device: str | None = None) -> ProcessGroup:
    """Join the process group of torchrun's ranks. Raises `UsageError` where torchrun did not start this process.

    `device` is the kind, "cpu" or "cuda"; None takes a GPU for each rank where there is one.
    """
    if not dist.is_torchelastic_launched():
        raise UsageError(
            "Several ranks train together only where torchrun started them: "
            "torchrun --nproc-per-node 2 -m hud.cli.distributed train MODEL TASKS"
        )
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        dist.init_process_group("cpu:gloo,cuda:nccl")
        here = torch.device("cuda", dist.get_node_local_rank())
        if here.index >= torch.cuda.device_count():
            dist.destroy_process_group()
            raise UsageError(
                f"Rank {here.index} of this machine has no GPU: there are {torch.cuda.device_count()}. Start as many "
                "ranks as there are GPUs."
            )
        torch.cuda.set_device(here)
    else:
        dist.init_process_group("gloo")
        here = torch.device("cpu")
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    return ProcessGroup(here, mesh, dist.new_group(backend="gloo", timeout=_PATIENCE))


def leave() -> None:
    """Destroy the process group."""
    dist.destroy_process_group()
