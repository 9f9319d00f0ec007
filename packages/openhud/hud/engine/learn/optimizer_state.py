"""Storage of the optimizer state between two steps: as it is, in eight bits, or in the host's memory.

Eight bits hold blocks of 256 numbers, each as a code times the largest magnitude of its block (Dettmers et al.,
arXiv 2110.02861, with codes of our own):

    first moment    x ≈ s · sign(c) (c / 127)²     c in -127 … 127
    second moment   x ≈ s · (c / 255)⁴             c in 0 … 255; what is not 0 never becomes 0

So steps between codes are finest near 0, where most moments are, and √v, what is divided by, is as fine as m. A
number is off by at most 0.8% of its block's largest. What was read back keeps its codes when it is kept again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale."""
SMALLEST = 4096
"""Tensors with fewer numbers, such as the scales of norms, stay as they are: they cost nothing."""
NOTHING = 1e-28
"""Blocks whose largest magnitude is below this are 0: their codes would lie where fp32 loses digits."""


@dataclass(frozen=True)
class OptimizerOptions:
    """Size and place of the optimizer state."""

    states: Literal["float32", "8bit"] = "float32"
    """Storage of the two moments: 8 bytes for each weight, or 2."""
    offload: bool = False
    """Keep moments, and fp32 copies of weights that compute in less, in the host's memory, not the device's."""


class Kept:
    """A tensor between two steps, kept as it is."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def read(self) -> Tensor:
        """Return it where steps are computed. Changes count once they are written."""
        return self.value

    def write(self, value: Tensor) -> None:
        """Keep what was read and changed."""
        if value is not self.value:
            self.value.copy_(value)


class Offloaded(Kept):
    """Kept in the host's memory, page-locked where a GPU fetches it."""

    def __init__(self, value: Tensor) -> None:
        self.device = value.device
        self.value = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        self.write(value)

    def read(self) -> Tensor:
        return self.value.to(self.device, non_blocking=True, copy=True)


class Quantized(Kept):
    """Kept in eight bits a number, and one scale for each block."""

    def __init__(self, value: Tensor, *, signed: bool, offload: bool) -> None:
        self.signed = signed
        self.device, self.dtype, self.shape = value.device, value.dtype, value.shape
        codes, scales = encode(value, signed=signed)
        storage = Offloaded if offload else Kept
        self._codes, self._scales = storage(codes), storage(scales)

    def read(self) -> Tensor:
        values = decode(self._codes.read(), self._scales.read(), signed=self.signed)
        return values[: self.shape.numel()].view(self.shape).to(self.dtype)

    def write(self, value: Tensor) -> None:
        codes, scales = encode(value, signed=self.signed)
        self._codes.write(codes)
        self._scales.write(scales)


def stored_moment(value: Tensor, options: OptimizerOptions, *, signed: bool) -> Kept:
    """Return a moment as the options keep it."""
    if options.states == "8bit" and value.numel() >= SMALLEST:
        return Quantized(value, signed=signed, offload=options.offload)
    return Offloaded(value) if options.offload else Kept(value)


def encode(value: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Return codes (B, 256), int8 where signed, else uint8, and scales (B,) fp32 of a tensor's B blocks."""
    flat = value.detach().flatten().float()
    blocks = F.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    scales = torch.where(scales < NOTHING, 0.0, scales)
    shares = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
    # A block that counts as 0 has no codes beside 0.
    shares = torch.where(scales[:, None] > 0, shares, 0.0)
    if signed:
        codes = (shares.abs().sqrt() * 127).round() * shares.sign()
        return codes.to(torch.int8), scales
    codes = (shares.sqrt().sqrt() * 255).round()
    return torch.where(shares > 0, codes.clamp(min=1), 0).to(torch.uint8), scales


def decode(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """Return the numbers (B * 256,) fp32 that codes and scales stand for."""
    shares = codes.float() / (127 if signed else 255)
    shares = shares * shares.abs() if signed else shares.square().square()
    return (shares * scales[:, None]).flatten()
