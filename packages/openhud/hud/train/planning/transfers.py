"""Durations of what moves between the planes: weights to samplers, checkpoints to disk. Networks count bits, disks bytes."""

from __future__ import annotations

from hud.engine.memory.model_shapes import FP32, ModelShape
from hud.engine.memory.trainer_memory import Training

GIGA = 1e9


def broadcast_bytes(shape: ModelShape, training: Training, rank: int) -> float:
    """Return the bytes that samplers get after a step: 2 P of bf16 weights, or an adapter's fp32 parameters."""
    if training == "lora":
        return FP32 * shape.adapter_parameters(rank)
    return shape.weight_bytes


def broadcast_seconds(size: float, network_gbit: float) -> float:
    """Return 8 · size / bandwidth, for any number of receivers.

    A pipelined chain or tree sends a part on while the next one arrives, so every link carries the whole once, at the same
    time: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), long messages;
    NCCL's broadcast is such a chain. `network_gbit`: of the slowest link, in Gb/s.
    """
    return 8 * size / (network_gbit * GIGA)


def folder_seconds(size: float, disk_gb: float, samplers: int) -> float:
    """Return (1 + samplers) · size / bandwidth: a shared folder is written once, and read by every sampler from one disk."""
    return (1 + samplers) * size / (disk_gb * GIGA)


def checkpoint_bytes(shape: ModelShape, training: Training, rank: int) -> float:
    """Return the bytes of a checkpoint: what samplers get, and the optimizer's states, in fp32 however they are kept.

    12 P for master and two moments; 8 for each of an adapter's parameters, which are their own master.
    """
    trained = shape.adapter_parameters(rank) if training == "lora" else shape.parameters
    states = 2 * FP32 if training == "lora" else 3 * FP32
    return broadcast_bytes(shape, training, rank) + states * trained


def checkpoint_seconds(size: float, disk_gb: float) -> float:
    """Return size / bandwidth: the trainer waits for the write. `disk_gb`: in GB/s."""
    return size / (disk_gb * GIGA)


def overhead(seconds: float, step_seconds: float, every: int) -> float:
    """Return the share of time that an interruption of `seconds` takes every `every` steps of `step_seconds`: t / (n · s)."""
    return seconds / (every * step_seconds)
