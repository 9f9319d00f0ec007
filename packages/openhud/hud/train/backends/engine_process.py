"""Process of the engine during a run: one of its own on a GPU, whose launches then wait for no Python of the rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hud.client import Client
from hud.engine.backends.registered import PLATFORM

if TYPE_CHECKING:
    from hud.train.config import TrainConfig


@asynccontextmanager
async def engine_process(client: Client, config: TrainConfig) -> AsyncIterator[None]:
    """Sample and train in a process of its own during the block, where that is faster.

    On a CPU both share the cores in any case, and a server has such a process already. A profile records this process.
    """
    stays = config.engine_process == "off" or config.profile is not None
    if client.embedded is None or stays or config.backend != PLATFORM or not has_gpu():
        yield
        return
    async with client.embedded.engine_process():
        yield


def has_gpu() -> bool:
    """Return True on a machine with a GPU, without opening it in this process."""
    import torch

    return torch.cuda.device_count() > 0
