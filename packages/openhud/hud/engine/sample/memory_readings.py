"""Free memory of the device that holds a key-value cache."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch

from hud.processes.host_memory import HostMemory


class DeviceMemory(Protocol):
    """Memory of one device."""

    lazy: ClassVar[bool]
    """True: memory is taken when it is first written to, not when it is allocated."""

    def free(self) -> int:
        """Return how many bytes this process may still take."""


class CudaMemory:
    """Memory of a CUDA GPU."""

    lazy: ClassVar[bool] = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free(self) -> int:
        """Return the driver's free bytes, and those that torch's allocator holds without use."""
        free, _ = torch.cuda.mem_get_info(self._device)
        unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(
            self._device
        )
        return free + unused


class CpuMemory(HostMemory):
    """Memory of a CPU: this machine's."""

    lazy: ClassVar[bool] = True


def memory_of(device: torch.device) -> DeviceMemory:
    """Return the memory of a device."""
    return CudaMemory(device) if device.type == "cuda" else CpuMemory()
