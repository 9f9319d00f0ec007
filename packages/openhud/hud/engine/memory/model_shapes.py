"""Dimensions of the models that `hud plan` sizes, and data sheets of accelerators.

Bytes and operations that follow from a shape alone are its properties; everything is per model, not per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
BF16 = 2
FP32 = 4


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a dense decoder with gated feed-forward layers."""

    name: str
    parameters: float
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        """2 P: the weights in bf16."""
        return BF16 * self.parameters

    @property
    def bytes_per_token(self) -> int:
        """2 · layers · kv_heads · head_dim · 2: keys and values of one token, in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BF16

    def adapter_parameters(self, rank: int) -> float:
        """Return rank · layers · Σ (in + out) over the seven matrices of a layer (LoRA, arXiv 2106.09685)."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        widths = (
            self.hidden + queries,  # q
            2 * (self.hidden + keys),  # k, v
            queries + self.hidden,  # o
            3 * (self.hidden + self.intermediate),  # gate, up, down
        )
        return float(rank * self.layers * sum(widths))


SHAPES = (
    ModelShape("7B", 7.6e9, 28, 3584, 18944, 28, 4, 128),
    ModelShape("32B", 32.8e9, 64, 5120, 27648, 40, 8, 128),
    ModelShape("70B", 70.6e9, 80, 8192, 28672, 64, 8, 128),
)
"""Qwen2.5-7B, Qwen2.5-32B and Llama-3.1-70B, from their config.json."""


@dataclass(frozen=True)
class Machine:
    """An accelerator: figures of its data sheet, and the fractions of them that are achieved."""

    memory_gib: float = 140.0
    bandwidth_tb: float = 4.8
    """Memory bandwidth, in TB/s."""
    tflops: float = 989.0
    """Dense bf16 TFLOP/s."""
    decode_fraction: float = 0.6
    """Achieved fraction of the memory bandwidth in decoding: the bar of `benchmarks/gpu/decoding.py`."""
    compute_fraction: float = 0.4
    """Achieved fraction of FLOP/s in training, prefill and large decoded batches."""
    usable: float = 0.9
    """Usable fraction of the memory; the rest is for the driver, gathered layers and fragmentation."""

    @property
    def usable_bytes(self) -> float:
        """Usable memory, in bytes."""
        return self.memory_gib * self.usable * GIB

    @property
    def decode_bandwidth(self) -> float:
        """Achieved memory bandwidth in decoding, in bytes/s."""
        return self.bandwidth_tb * 1e12 * self.decode_fraction

    @property
    def compute(self) -> float:
        """Achieved floating-point operations a second."""
        return self.tflops * 1e12 * self.compute_fraction


MACHINES = {"H100": Machine(80.0, 3.35), "H200": Machine()}
"""NVIDIA's SXM boards. Memory as the driver reports it, in GiB."""
