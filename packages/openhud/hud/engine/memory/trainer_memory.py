"""Memory of a trainer and of a sampler, part by part. P is the number of parameters.

What this project's trainer holds for each trained parameter (`hud.engine.learn.optimizer`):

    weights      bf16                                    2
    gradients    bf16 of one pass, and their fp32 sum    2 + 4
    optimizer    fp32 master, and two moments            4 + 8, or 4 + 2 in eight bits (arXiv 2110.02861),
                                                         or 0 where they are offloaded to the host's memory

which is mixed-precision Adam's 16 bytes of ZeRO (arXiv 1910.02054, section 3.1) and the fp32 sum, by which gradients of several
passes do not lose digits. Weights in fp32 are their own master and sum: 4, 4, and the moments. LoRA's base is the weights alone; its adapter is fp32: weights 4, gradients 4, moments 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from hud.engine.memory.model_shapes import BF16, FP32, Machine, ModelShape
from hud.errors import UsageError

Training = Literal["full", "8bit", "offload", "lora"]
"""`full`: every weight, with fp32 moments. `8bit`: with `optimizer_states="8bit"`. `offload`: with `offload_optimizer`. `lora`: an
adapter."""
TRAININGS: tuple[Training, ...] = get_args(Training)
MOST_TRAINER_GPUS = 4096
PASS_TOKENS = 4096
"""Tokens of a pass on one GPU; a longer sequence is a pass of its own (`hud.engine.learn.local_trainer`)."""


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes of a trainer, over all its GPUs."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """Sum of the parts, in bytes."""
        return self.weights + self.gradients + self.optimizer + self.activations


def trainer_memory(
    shape: ModelShape,
    training: Training,
    *,
    gpus: int,
    longest: int,
    rank: int,
    weight: int = BF16,
    recompute: bool = True,
) -> TrainerMemory:
    """Return a trainer's memory on `gpus`, with sequences of up to `longest` tokens and `weight` bytes a weight.

    Weights, gradients and optimizer states are sharded over the GPUs (FSDP2), so their sum does not depend on how many there
    are; each GPU has the activations of a pass of its own.
    """
    trained = shape.parameters if training != "lora" else shape.adapter_parameters(rank)
    weights = weight * shape.parameters
    if training == "lora":
        states = weights + FP32 * trained, FP32 * trained, 2 * FP32 * trained
    else:
        copied = weight < FP32
        moments = {"full": 2 * FP32, "8bit": 2, "offload": 0}[training]
        master = FP32 if copied and training != "offload" else 0
        gradient = weight + (FP32 if copied else 0)
        states = weights, gradient * trained, (master + moments) * trained
    tokens = max(PASS_TOKENS, longest)
    activations = activation_bytes(shape, tokens, weight=weight, recompute=recompute)
    return TrainerMemory(*states, gpus * activations)


def with_adapter(memory: TrainerMemory, parameters: float) -> TrainerMemory:
    """Return a trainer's memory with `parameters` more of an adapter, in fp32."""
    return replace(
        memory,
        gradients=memory.gradients + FP32 * parameters,
        optimizer=memory.optimizer + 2 * FP32 * parameters,
        weights=memory.weights + FP32 * parameters,
    )


def activation_bytes(
    shape: ModelShape, tokens: int, *, weight: int = BF16, recompute: bool = True
) -> float:
    """Return the activations of one pass of `tokens` on one GPU, with `recompute_layers` or without.

    tokens · `weight` bytes · (layers · hidden + one layer's own): recomputation keeps the input of every layer (arXiv 1604.06174), and in the
    backward pass what one layer computes: two norms, queries, attention's output, two residual sums (6 hidden), keys and values,
    gate, up and their product (3 intermediate). Attention's scores are not stored (FlashAttention, arXiv 2205.14135), logits are
    computed in chunks. Without
    recomputation every layer keeps its own.
    """
    layer = 6 * shape.hidden + 2 * shape.kv_heads * shape.head_dim + 3 * shape.intermediate
    values = shape.layers * shape.hidden + layer if recompute else shape.layers * layer
    return float(tokens * weight * values)


def trainer_gpus(
    shape: ModelShape, training: Training, machine: Machine, *, longest: int, rank: int
) -> int:
    """Return the least power of two of GPUs whose usable memory holds the trainer.

    states / n + activations ≤ usable. Powers of two: the sizes in which nodes are rented and tensors divide evenly.
    Raises `UsageError` if no number does.
    """
    single = trainer_memory(shape, training, gpus=1, longest=longest, rank=rank)
    room = machine.usable_bytes - single.activations
    if room <= 0 or (single.total - single.activations) / room > MOST_TRAINER_GPUS:
        raise UsageError(
            f"{shape.name} cannot be trained on GPUs of {machine.memory_gib:g} GiB: one sequence of {longest:,} tokens needs "
            f"{single.activations / 2**30:.0f} GiB of activations."
        )
    return power_of_two((single.total - single.activations) / room)


def bytes_a_parameter(shape: ModelShape, machine: Machine, *, gpus: int, longest: int) -> float:
    """Return how many bytes of states a parameter may have for `gpus` to hold the trainer: `trainer_gpus`, solved for them."""
    room = machine.usable_bytes - activation_bytes(shape, max(PASS_TOKENS, longest))
    return gpus * room / shape.parameters


def kv_room(shape: ModelShape, machine: Machine, gpus: int) -> float:
    """Return the bytes for keys and values of a sampler over `gpus`: usable memory less the weights; below 0: no room."""
    return gpus * machine.usable_bytes - shape.weight_bytes


def power_of_two(count: float) -> int:
    """Return the least power of two that is at least `count`, and at least 1."""
    return 1 << max(0, math.ceil(count) - 1).bit_length()
