"""Weights in memory that other processes compute with too: whoever trains them here changes them there."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder, inverse_frequencies
from hud.engine.lora import LoraConfig, attach, lora_layers

_ALIGNED = 64
"""Bytes at whose multiples tensors begin, as torch's own do."""


@dataclass(frozen=True)
class Placed:
    """Where one parameter lies."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def within(self, memory: Tensor) -> Tensor:
        """Return the tensor that lies there in `memory` (bytes,) uint8."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Plan:
    """What another process needs, beside the memory, to make the same decoder."""

    config: DecoderConfig
    lora: LoraConfig | None
    parameters: tuple[Placed, ...]
    size: int

    @classmethod
    def of(cls, decoder: Decoder) -> Plan:
        """Lay out a decoder's parameters, end to end."""
        placed, offset = [], 0
        for name, parameter in decoder.named_parameters():
            one = Placed(name, tuple(parameter.shape), parameter.dtype, offset)
            placed.append(one)
            offset += -(-one.nbytes // _ALIGNED) * _ALIGNED
        return cls(decoder.config, _lora_of(decoder), tuple(placed), offset)


class SharedWeights:
    """A decoder's parameters, moved into memory that has a file descriptor."""

    def __init__(self, decoder: Decoder) -> None:
        """Move them. Whoever holds the parameters goes on with them; whoever holds their old data does not."""
        self.plan = Plan.of(decoder)
        self.descriptor = _memory(self.plan.size)
        self._bytes = _mapped(self.descriptor, self.plan.size)
        with torch.no_grad():
            _rest_on(decoder, self.plan, self._bytes, keep=True)

    def hold(self, decoder: nn.Module) -> bool:
        """Return True while these are the decoder's parameters: none was replaced, none was added."""
        found = dict(decoder.named_parameters())
        start = self._bytes.data_ptr()
        return len(found) == len(self.plan.parameters) and all(
            one.name in found and found[one.name].data_ptr() == start + one.offset
            for one in self.plan.parameters
        )

    def close(self) -> None:
        """Give the descriptor back; the memory stays as long as somebody computes with it."""
        os.close(self.descriptor)


def decoder_over(plan: Plan, descriptor: int) -> Decoder:
    """Return a decoder that computes with somebody else's parameters."""
    with torch.device("meta"):
        decoder = Decoder(plan.config)
    if plan.lora is not None:
        attach(decoder, plan.lora)
    _rest_on(decoder, plan, _mapped(descriptor, plan.size), keep=False)
    decoder.rotary = inverse_frequencies(plan.config)  # Made on the meta device: empty until here.
    return decoder.requires_grad_(False).eval()


def _rest_on(decoder: Decoder, plan: Plan, memory: Tensor, *, keep: bool) -> None:
    """Make parts of `memory` the data of the parameters; with `keep` they hold what the parameters held."""
    for one in plan.parameters:
        owner, _, last = one.name.rpartition(".")
        place = one.within(memory)
        if keep:
            parameter = decoder.get_parameter(one.name)
            parameter.data = place.copy_(parameter)
        else:
            setattr(decoder.get_submodule(owner), last, nn.Parameter(place, requires_grad=False))


def _lora_of(decoder: nn.Module) -> LoraConfig | None:
    layers = lora_layers(decoder)
    if not layers:
        return None
    layer = next(iter(layers.values()))
    rank = layer.lora_A.shape[0]
    targets = sorted({name.rpartition(".")[2] for name in layers})
    return LoraConfig(rank=rank, alpha=layer.scale * rank, targets=tuple(targets))


def _memory(size: int) -> int:
    """Return the descriptor of `size` bytes that lie in no folder."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("hud-weights")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


def _mapped(descriptor: int, size: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
