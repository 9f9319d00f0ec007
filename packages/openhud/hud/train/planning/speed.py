"""Durations of decoding, prefill and training, from operations, bytes and bandwidths.

A product and a sum are two floating-point operations. A forward pass has 2 P for each token, its gradients 4 P more (Kaplan et
al., arXiv 2001.08361, section 2.1); attention's own are left out: below 10% at the lengths and sizes here.
"""

from __future__ import annotations

from dataclasses import dataclass

from hud.engine.memory.model_shapes import Machine, ModelShape
from hud.engine.memory.trainer_memory import Training


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
    def sampled(self) -> int:
        """Sampled tokens of a rollout."""
        return self.turns * self.tokens_per_turn

    @property
    def length(self) -> int:
        """Tokens of a whole rollout."""
        return self.prompt + self.turns * (self.tokens_per_turn + self.observed_per_turn)

    @property
    def half_way(self) -> float:
        """Mean length of a rollout over its turns, in tokens."""
        return self.prompt + (self.length - self.prompt) / 2

    @property
    def environment_seconds(self) -> float:
        """Seconds of a rollout in its environment."""
        return self.turns * self.environment_seconds_per_turn


def training_seconds(
    shape: ModelShape, work: Work, machine: Machine, training: Training, gpus: int
) -> float:
    """Return the duration of a step's gradient passes.

    (8 P or 6 P) · tokens / FLOP/s: forward 2 P, gradients of activations 2 P and, in full fine-tuning, of weights 2 P, and the
    forward pass again for recomputed layers, 2 P.
    """
    operations = (6 if training == "lora" else 8) * shape.parameters
    return operations * work.rollouts * work.length / (gpus * machine.compute)


def decode_step(
    shape: ModelShape, machine: Machine, *, gpus: int, sequences: float, context: float
) -> float:
    """Return the seconds in which each of `sequences` gets one token, with `context` tokens before it.

    The roofline (Williams et al., 2009): the longer of reading 2 P bytes of weights and every sequence's keys and values, and of
    computing 2 P operations for each sequence.
    """
    read = shape.weight_bytes + sequences * context * shape.bytes_per_token
    computed = 2 * shape.parameters * sequences
    return max(read / (gpus * machine.decode_bandwidth), computed / (gpus * machine.compute))


def prefill_seconds(shape: ModelShape, machine: Machine, *, gpus: int, tokens: float) -> float:
    """Return 2 P · tokens / FLOP/s: the duration of computing `tokens` whose keys and values are not cached."""
    return 2 * shape.parameters * tokens / (gpus * machine.compute)


def turn_seconds(
    shape: ModelShape, work: Work, machine: Machine, *, gpus: int, at_once: int
) -> float:
    """Return the seconds that a rollout is decoded for, while a sampler plays `at_once` of them.

    A rollout that waits for its environment is not decoded. With S seconds of decoding and W of waiting, S / (S + W) of the
    rollouts are decoded at a time, and S grows with that number: a fixed point, found by iteration from above, which falls
    monotonically because S rises with the number and S / (S + W) with S.
    """
    decoded = float(at_once)
    for _ in range(50):
        step = decode_step(shape, machine, gpus=gpus, sequences=decoded, context=work.half_way)
        drawing = work.sampled * step
        decoded = max(1.0, at_once * drawing / (drawing + work.environment_seconds))
    return drawing


@dataclass(frozen=True)
class Sampling:
    """Duration of a step's rollouts on one sampler, in seconds, by what it is spent on."""

    at_once: int
    """Concurrent rollouts."""
    rounds: float
    """Rollouts that follow one another in each place, at least 1."""
    decoding: float
    environments: float
    prefill: float

    @property
    def seconds(self) -> float:
        """Duration of the whole share."""
        return self.decoding + self.environments + self.prefill


def sampling(
    shape: ModelShape, work: Work, machine: Machine, *, gpus: int, at_once: int, rollouts: int
) -> Sampling:
    """Return the duration of `rollouts` on one sampler, `at_once` of them at a time.

    rollouts / at_once times the duration of one (a rollout begins where another ends), at least once; and the prefill of what was
    not sampled, each token once: earlier turns are in the prefix cache.
    """
    rounds = max(1.0, rollouts / at_once)
    drawing = turn_seconds(shape, work, machine, gpus=gpus, at_once=at_once)
    prefilled = rollouts * (work.length - work.sampled)
    return Sampling(
        at_once,
        rounds,
        rounds * drawing,
        rounds * work.environment_seconds,
        prefill_seconds(shape, machine, gpus=gpus, tokens=prefilled),
    )
