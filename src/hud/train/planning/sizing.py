"""Estimates of memory, compute and cost of training a large model: samplers, trainer and environments.

    sampler    weights 2 P; a token's keys and values 2 · layers · kv_heads · head_dim · 2 bytes
               decoding is memory-bound: a step reads the weights once and every sequence's keys and values
    trainer    full: weights 2 P + gradients 4 P + fp32 masters 4 P + two moments 8 P bytes; LoRA: weights 2 P, and all of
               these for the adapter alone; activations with recomputation: layers · hidden · 2 bytes for each token of a pass
               6 P floating-point operations for each token (4 P with LoRA, whose base has no weight gradients), and a third
               more for the recomputation
    environments   processes on CPU machines, one per concurrent rollout

P is the number of parameters. Prices are inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hud.errors import UsageError

GIB = 2**30


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a model."""

    name: str
    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token's keys and values, in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


SHAPES = (
    ModelShape("7B", 7.6e9, 28, 3584, 4, 128),
    ModelShape("32B", 32.8e9, 64, 5120, 8, 128),
    ModelShape("70B", 70.6e9, 80, 8192, 8, 128),
)
"""Qwen2.5-7B, Qwen2.5-32B and Llama-3.1-70B."""


@dataclass(frozen=True)
class Machine:
    """An accelerator: its data sheet's figures, and achieved fractions."""

    memory_gib: float = 80.0
    bandwidth_tb: float = 3.35
    """Memory bandwidth, in TB/s."""
    tflops: float = 989.0
    """Dense bf16 TFLOP/s."""
    decode_fraction: float = 0.6
    """Achieved fraction of the memory bandwidth in decoding."""
    train_fraction: float = 0.4
    """Achieved fraction of FLOP/s in training."""
    usable: float = 0.9
    """Usable fraction of the memory; the rest is for the driver and fragmentation."""


@dataclass(frozen=True)
class Work:
    """One step of a run."""

    rollouts: int = 512
    turns: int = 10
    tokens_per_turn: int = 400
    """Sampled tokens of a turn."""
    observed_per_turn: int = 600
    """Tokens of tool results, between turns."""
    prompt: int = 2_000
    environment_seconds_per_turn: float = 5.0
    steps: int = 200

    @property
    def drawn(self) -> int:
        """Sampled tokens of a rollout."""
        return self.turns * self.tokens_per_turn

    @property
    def length(self) -> int:
        """Tokens of a whole rollout."""
        return self.prompt + self.turns * (self.tokens_per_turn + self.observed_per_turn)


@dataclass(frozen=True)
class Plan:
    """Requirements of one model."""

    model: str
    training: str
    trainer_bytes: float
    trainer_gpus: int
    sampler_bytes: float
    """Memory of a sampler: weights, and keys and values of its rollouts."""
    gpus_per_sampler: int
    samplers: int
    environments: int
    sampling_seconds: float
    """Duration of a step, with these samplers."""
    training_seconds: float
    gpu_hours: float
    """Duration of the whole run, with concurrent sampling and training."""
    environment_hours: float

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.trainer_gpus + self.samplers * self.gpus_per_sampler

    def cost(self, gpu_hour: float, environment_hour: float) -> float:
        """Return the price of the whole run."""
        return self.gpu_hours * gpu_hour + self.environment_hours * environment_hour


def plan_for(
    shape: ModelShape, work: Work, machine: Machine, *, lora: bool, pass_tokens: int = 65_536
) -> Plan:
    """Return a run's requirements, with samplers as fast as the trainer. Raises `UsageError` if a model does not fit."""
    usable = machine.memory_gib * machine.usable * GIB
    weights = 2 * shape.parameters
    states = 2 * shape.parameters if lora else 18 * shape.parameters
    trainer_bytes = states + pass_tokens * shape.layers * shape.hidden * 2
    trainer_gpus = _power_of_two(math.ceil(trainer_bytes / usable))
    # At least half of a sampler's memory is for keys and values.
    gpus_per_sampler = _power_of_two(math.ceil(2 * weights / usable))
    if gpus_per_sampler > 64 or trainer_gpus > 4096:
        raise UsageError(f"{shape.name} does not fit: {machine.memory_gib:g} GiB is too little.")
    held = work.length * shape.bytes_per_token
    room = gpus_per_sampler * usable - weights
    at_once = max(1, min(work.rollouts, int(room // held)))
    training_seconds = _training_seconds(shape, work, machine, trainer_gpus, lora)
    alone = _sampling_seconds(shape, work, machine, gpus_per_sampler, at_once)
    samplers = max(1, math.ceil(alone / training_seconds))
    at_once = max(1, min(at_once, math.ceil(work.rollouts / samplers)))
    share = replace(work, rollouts=math.ceil(work.rollouts / samplers))
    sampling_seconds = _sampling_seconds(shape, share, machine, gpus_per_sampler, at_once)
    step = max(sampling_seconds, training_seconds)
    hours = work.steps * step / 3600
    environments = min(work.rollouts, samplers * at_once)
    return Plan(
        model=shape.name,
        training="LoRA" if lora else "full",
        trainer_bytes=trainer_bytes,
        trainer_gpus=trainer_gpus,
        sampler_bytes=weights + at_once * held,
        gpus_per_sampler=gpus_per_sampler,
        samplers=samplers,
        environments=environments,
        sampling_seconds=sampling_seconds,
        training_seconds=training_seconds,
        gpu_hours=hours * (trainer_gpus + samplers * gpus_per_sampler),
        environment_hours=hours * environments,
    )


def _training_seconds(
    shape: ModelShape, work: Work, machine: Machine, gpus: int, lora: bool
) -> float:
    operations = (4 if lora else 6) * shape.parameters * (4 / 3) * work.rollouts * work.length
    return operations / (gpus * machine.tflops * 1e12 * machine.train_fraction)


def _sampling_seconds(
    shape: ModelShape, work: Work, machine: Machine, gpus: int, at_once: int
) -> float:
    """Return the time of a sampler for its rollouts, with `at_once` concurrent ones.

    A rollout that waits for a tool is not decoded; with a share w of waiting time, the decoded batch is smaller by w.
    """
    bandwidth = gpus * machine.bandwidth_tb * 1e12 * machine.decode_fraction
    half_way = work.prompt + (work.length - work.prompt) / 2
    waves = math.ceil(work.rollouts / at_once)
    waiting = work.turns * work.environment_seconds_per_turn
    # A step's time and its batch size depend on each other: fixed-point iteration.
    drawn_at_once = float(at_once)
    for _ in range(20):
        step = (2 * shape.parameters + drawn_at_once * half_way * shape.bytes_per_token) / bandwidth
        drawing = work.drawn * step
        drawn_at_once = max(1.0, at_once * drawing / (drawing + waiting))
    prefill = (
        2 * shape.parameters * work.rollouts * (work.length - work.drawn)
        / (gpus * machine.tflops * 1e12 * machine.train_fraction)
    )  # fmt: skip
    return waves * (drawing + waiting) + prefill


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
