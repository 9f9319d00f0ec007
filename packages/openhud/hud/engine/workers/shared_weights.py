"""A copy of a decoder's weights in shared memory, for worker processes; updated between two steps."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.engine.lora import LoraConfig, attach, lora_layers
from hud.engine.models.reference_decoder import ReferenceDecoder, inverse_frequencies

_LINE = 64
"""Bytes of a cache line. Products may round differently where their operands begin elsewhere in one."""


@dataclass(frozen=True)
class Placed:
    """The place of one parameter in shared memory."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def within(self, memory: Tensor) -> Tensor:
        """Return the tensor at this place in `memory` (bytes,) uint8."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Plan:
    """The shape of a decoder and the places of its parameters, from which another process makes the same decoder."""

    config: DecoderConfig
    lora: LoraConfig | None
    parameters: tuple[Placed, ...]
    size: int

    def tensors(self, descriptor: int) -> list[Tensor]:
        """Return a tensor for each parameter, in the shared memory of a descriptor."""
        memory = torch.frombuffer(mmap.mmap(descriptor, self.size), dtype=torch.uint8)
        return [placed.within(memory) for placed in self.parameters]

    @classmethod
    def of(cls, decoder: ReferenceDecoder) -> Plan:
        """Place a decoder's parameters one after the other, each at its present offset within a cache line."""
        placed, offset = [], 0
        for name, parameter in decoder.named_parameters():
            # A file's weights may begin at any byte; a view needs whole numbers.
            begins = parameter.data_ptr() // parameter.itemsize * parameter.itemsize
            offset += (begins - offset) % _LINE
            entry = Placed(name, tuple(parameter.shape), parameter.dtype, offset)
            placed.append(entry)
            offset += entry.nbytes
        return cls(decoder.config, _lora_of(decoder), tuple(placed), offset)


class SharedWeights:
    """A copy of a decoder's parameters, in memory that has a file descriptor.

    A copy, because an optimizer may keep the memory in which the parameters were when it was made.
    """

    def __init__(self, decoder: ReferenceDecoder) -> None:
        self.plan = Plan.of(decoder)
        self.descriptor = shared_memory(self.plan.size)
        self._copies = self.plan.tensors(self.descriptor)
        self.refresh(decoder)

    @torch.no_grad()
    def refresh(self, decoder: nn.Module) -> bool:
        """Copy the present parameters; False where their names, shapes or dtypes have changed."""
        current = dict(decoder.named_parameters())
        laid_out = {(placed.name, placed.shape, placed.dtype) for placed in self.plan.parameters}
        if {
            (name, tuple(parameter.shape), parameter.dtype) for name, parameter in current.items()
        } != laid_out:
            return False
        for placed, copy in zip(self.plan.parameters, self._copies, strict=True):
            copy.copy_(current[placed.name])
        return True

    def close(self) -> None:
        """Close the descriptor; the memory stays as long as a process maps it."""
        os.close(self.descriptor)


def decoder_over(plan: Plan, descriptor: int) -> ReferenceDecoder:
    """Return a decoder over the shared parameters of a descriptor."""
    with torch.device("meta"):
        decoder = ReferenceDecoder(plan.config)
    if plan.lora is not None:
        attach(decoder, plan.lora)
    for placed, tensor in zip(plan.parameters, plan.tensors(descriptor), strict=True):
        owner, _, last = placed.name.rpartition(".")
        setattr(decoder.get_submodule(owner), last, nn.Parameter(tensor, requires_grad=False))
    decoder.rotary = inverse_frequencies(plan.config)
    return decoder.requires_grad_(False).eval()


def _lora_of(decoder: nn.Module) -> LoraConfig | None:
    layers = lora_layers(decoder)
    if not layers:
        return None
    layer = next(iter(layers.values()))
    rank = layer.lora_A.shape[0]
    targets = sorted({name.rpartition(".")[2] for name in layers})
    return LoraConfig(rank=rank, alpha=layer.scale * rank, targets=tuple(targets))


def shared_memory(size: int) -> int:
    """Return the descriptor of `size` bytes of anonymous memory, allocated when written."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("hud")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
