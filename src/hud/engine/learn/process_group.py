"""Several processes, started by torchrun, that train one model together: how they meet, and what they tell one another.

Tensors are cut along their first dimension (`DTensor`). Counts and norms travel as objects, on the host.
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

from hud.errors import UsageError

T = TypeVar("T")

_PATIENCE = timedelta(days=365)
"""How long a rank waits to be told what to do: rollouts between two steps may take hours. Where another rank dies,
torchrun ends all of them."""


class Joined:
    """Several processes, each started by torchrun."""

    def __init__(self, device: torch.device, mesh: DeviceMesh, control: dist.ProcessGroup) -> None:
        self.device = device
        """Where this rank computes."""
        self.mesh = mesh
        """All ranks, in one dimension."""
        self._control = control

    @property
    def count(self) -> int:
        return self.mesh.size()

    @property
    def index(self) -> int:
        return self.mesh.get_rank()

    def told(self, mine: T) -> list[T]:
        """Return what each rank has to say, in their order."""
        everyone: list[T] = [mine] * self.count
        dist.all_gather_object(everyone, mine, group=self._control)
        return everyone

    def from_first(self, said: T | None = None) -> T:
        """Return what rank 0 says; the others wait for it, however long that takes."""
        box: list[Any] = [said]
        dist.broadcast_object_list(box, src=0, group=self._control)
        heard: T = box[0]
        return heard

    def part(self, tensor: Tensor) -> Tensor:
        """Return what this rank holds of a tensor, sharing its memory; all of it where it is not cut."""
        tensor = tensor.detach()
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def together(self, mine: Tensor, like: Tensor) -> Tensor:
        """Return, on every rank, the whole tensor of which each has the part that it has of `like`."""
        if not isinstance(like, DTensor):
            return mine
        placed = DTensor.from_local(
            mine,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )
        return placed.full_tensor()

    def cut(self, whole: Tensor | None, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return this rank's part of a tensor that rank 0 has whole, cut and placed as `like` is."""
        assert isinstance(like, DTensor)
        if whole is None:
            whole = torch.empty(like.shape, dtype=dtype, device=like.device)
        whole = whole.detach().to(device=like.device, dtype=dtype)
        return distribute_tensor(whole, like.device_mesh, like.placements).to_local()

    def release(self, decoder: nn.Module) -> None:
        """Give back what a pass without gradients borrowed from other ranks."""
        if isinstance(decoder, FSDPModule):
            decoder.reshard()


def join(device: str | None = None) -> Joined:
    """Meet the other ranks that torchrun started. Raises `UsageError` where torchrun did not start this process.

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
    return Joined(here, mesh, dist.new_group(backend="gloo", timeout=_PATIENCE))


def leave() -> None:
    """Part from the other ranks."""
    dist.destroy_process_group()
