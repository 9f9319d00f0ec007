"""Sizes of the three planes of a fleet: trainer, samplers, environments; their bottleneck, their losses and their cost.

    trainer        on demand: it has the only state that is not elsewhere. As few GPUs as its memory fits
    samplers       on spot: a lost one's turns continue elsewhere. As many as keep up with the trainer, and never one alone
    environments   on spot CPU nodes: a lost one's rollouts are played again. As many as the samplers' rollouts need

The arithmetic is in `memory`, `speed`, `transfers` and `preemption`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hud.engine.memory.model_shapes import Machine, ModelShape
from hud.engine.memory.trainer_memory import (
    TrainerMemory,
    Training,
    kv_room,
    trainer_gpus,
    trainer_memory,
)
from hud.errors import UsageError
from hud.train.planning.preemption import (
    HOUR,
    Preemption,
    environments_lost,
    samplers_lost,
    trainer_lost,
)
from hud.train.planning.prices import Hour
from hud.train.planning.speed import (
    Sampling,
    Work,
    prefill_seconds,
    sampling,
    training_seconds,
    turn_seconds,
)
from hud.train.planning.transfers import (
    broadcast_bytes,
    broadcast_seconds,
    checkpoint_bytes,
    checkpoint_seconds,
    folder_seconds,
    overhead,
)

WIDEST = 8
"""Most GPUs of one sampler: tensor parallelism needs the fast links within a node."""
WORTH = 1.2
"""Least gain of tokens a second of a GPU for which a sampler gets twice the GPUs: doubling adds all-reduces, and doubles what one
preemption takes away."""
LEAST_SAMPLERS = 2
"""On spot, one alone would stop every rollout when it is preempted."""

CORE_GIB = 4.0
"""Memory of a general-purpose CPU node for each core, in GiB."""


@dataclass(frozen=True)
class CpuNode:
    """A machine for environments, and what one environment takes of it."""

    cores: int = 64
    memory_gib: float = 64 * CORE_GIB
    environment_gib: float = 1.0
    busy: float = 0.8
    """Share of the cores that may be busy: above it, waiting for a core grows without bound (M/M/c queues)."""
    cores_used: float = 1.0
    """Cores that an environment computes on during its seconds of a turn."""

    def environments(self, share: float) -> int:
        """Return how many environments one node carries that compute for `share` of their time.

        The least of cores · busy / (share · cores_used) and memory / environment_gib, and at least 1.
        """
        by_cores = self.cores * self.busy / (share * self.cores_used) if share > 0 else math.inf
        return max(1, int(min(by_cores, self.memory_gib / self.environment_gib)))


@dataclass(frozen=True)
class Fleet:
    """The machines that a plan is made of."""

    machine: Machine = field(default_factory=Machine)
    node: CpuNode = field(default_factory=CpuNode)
    network_gbit: float = 100.0
    """Slowest link between trainer and samplers, in Gb/s."""
    disk_gb: float = 2.0
    """Disk of checkpoints and shared folders, in GB/s."""
    preemption: Preemption = field(default_factory=Preemption)
    every: int = 25
    """Steps between checkpoints, and between broadcasts."""
    rank: int = 32
    """Rank of a LoRA adapter."""


@dataclass(frozen=True)
class Plan:
    """The fleet of one model. Durations are in seconds, sizes in bytes, shares between 0 and 1."""

    model: str
    training: Training
    steps: int
    trainer: TrainerMemory
    trainer_gpus: int
    gpus_per_sampler: int
    samplers: int
    samplers_by_speed: int
    """Samplers that keep up with the trainer, were none preempted."""
    weights: float
    """Weights of one sampler."""
    kv_cache: float
    """Keys and values of one sampler's rollouts."""
    at_once: int
    """Rollouts of one sampler at a time."""
    environments: int
    environments_per_node: int
    nodes: int
    cores: int
    """Of all nodes."""
    sampling: Sampling
    """A step's rollouts, on one of these samplers."""
    training_seconds: float
    broadcast_bytes: float
    broadcast_seconds: float
    folder_seconds: float
    """The same weights through a shared folder."""
    checkpoint_bytes: float
    checkpoint_seconds: float
    every: int
    """Steps between checkpoints, and between broadcasts."""
    samplers_lost: float
    """Share of the samplers' time that preemption costs."""
    environments_lost: float
    trainer_lost: float
    """Share of its time that the trainer would lose, were it preempted as samplers are."""
    disturbed_seconds: float
    """Duration of a step with preemption."""

    @property
    def step_seconds(self) -> float:
        """Duration of a step without preemption: sampling and training run at the same time, so the longer of both."""
        return max(self.sampling.seconds, self.training_seconds)

    @property
    def bottleneck(self) -> str:
        """The plane that a step waits for.

        The trainer where training takes longer than sampling; else the larger part of sampling: the samplers' (decoding, prefill)
        or the environments'. (The step's time is at least the demand of its busiest plane: Denning and Buzen, "The Operational
        Analysis of Queueing Network Models", 1978.)
        """
        if self.training_seconds >= self.sampling.seconds:
            return "trainer"
        sampled = self.sampling.decoding + self.sampling.prefill
        return "samplers" if sampled >= self.sampling.environments else "environments"

    @property
    def sampler_gpus(self) -> int:
        """GPUs of all samplers."""
        return self.samplers * self.gpus_per_sampler

    @property
    def preemption_share(self) -> float:
        """Extra duration of a step by preemption, as a share of the undisturbed step."""
        return self.disturbed_seconds / self.step_seconds - 1

    def broadcast_share(self, every: int) -> float:
        """Return the share of time that a broadcast every so many steps takes."""
        return overhead(self.broadcast_seconds, self.step_seconds, every)

    def checkpoint_share(self, every: int) -> float:
        """Return the share of time that a checkpoint every so many steps takes."""
        return overhead(self.checkpoint_seconds, self.step_seconds, every)

    @property
    def run_seconds(self) -> float:
        """Steps · (disturbed step + (broadcast + checkpoint) / every): both interruptions hold up everything."""
        interrupted = (self.broadcast_seconds + self.checkpoint_seconds) / self.every
        return self.steps * (self.disturbed_seconds + interrupted)

    def hour_cost(self, gpu: Hour, core: Hour | None = None) -> float:
        """Return the price of an hour: the trainer on demand, samplers and environments on spot."""
        cost = self.trainer_gpus * gpu.on_demand + self.sampler_gpus * gpu.spot
        return cost if core is None else cost + self.cores * core.spot

    def run_cost(self, gpu: Hour, core: Hour | None = None) -> float:
        """Return the price of the whole run."""
        return self.run_seconds / HOUR * self.hour_cost(gpu, core)


def plan_for(shape: ModelShape, work: Work, fleet: Fleet, training: Training = "8bit") -> Plan:
    """Return the fleet of a model. Raises `UsageError` for one that does not fit."""
    machine, rank = fleet.machine, fleet.rank
    gpus = trainer_gpus(shape, training, machine, longest=work.length, rank=rank)
    trained = training_seconds(shape, work, machine, training, gpus)
    wide = sampler_width(shape, work, machine)

    by_speed = _samplers_by_speed(shape, work, machine, wide, trained)
    samplers = max(by_speed, LEAST_SAMPLERS)
    step_sampling = _share(shape, work, machine, wide, samplers)
    at_once = step_sampling.at_once
    environments = min(work.rollouts, samplers * at_once)
    rollout = (step_sampling.decoding + step_sampling.environments) / step_sampling.rounds
    per_node = fleet.node.environments(work.environment_seconds / rollout)
    nodes = math.ceil(environments / per_node)
    memory = trainer_memory(shape, training, gpus=gpus, longest=work.length, rank=rank)
    sent = broadcast_bytes(shape, training, rank)
    stored = checkpoint_bytes(shape, training, rank)
    event = fleet.preemption
    moved = prefill_seconds(shape, machine, gpus=wide, tokens=at_once * work.half_way)
    lost = samplers_lost(event.samplers_per_hour, event.sampler_away, moved)
    played_again = environments_lost(event.nodes_per_hour, event.node_away, rollout)
    disturbed = max(trained, _disturbed(step_sampling, lost, played_again))
    stored_seconds = checkpoint_seconds(stored, fleet.disk_gb)
    return Plan(
        model=shape.name,
        training=training,
        steps=work.steps,
        trainer=memory,
        trainer_gpus=gpus,
        gpus_per_sampler=wide,
        samplers=samplers,
        samplers_by_speed=by_speed,
        weights=shape.weight_bytes,
        kv_cache=at_once * work.length * shape.bytes_per_token,
        at_once=at_once,
        environments=environments,
        environments_per_node=per_node,
        nodes=nodes,
        cores=nodes * fleet.node.cores,
        sampling=step_sampling,
        training_seconds=trained,
        broadcast_bytes=sent,
        broadcast_seconds=broadcast_seconds(sent, fleet.network_gbit),
        folder_seconds=folder_seconds(sent, fleet.disk_gb, samplers),
        checkpoint_bytes=stored,
        checkpoint_seconds=stored_seconds,
        every=fleet.every,
        samplers_lost=lost,
        environments_lost=played_again,
        trainer_lost=trainer_lost(
            event.samplers_per_hour, event.sampler_away, stored_seconds, fleet.every * disturbed
        ),
        disturbed_seconds=disturbed,
    )


def sampler_width(shape: ModelShape, work: Work, machine: Machine) -> int:
    """Return the GPUs of one sampler: doubled while that raises the tokens a second of each GPU by `WORTH`.

    Twice the GPUs read the weights once instead of twice, and keep them once: more room for keys and values.
    Raises `UsageError` for a model that does not fit on a node.
    """
    chosen, rate = 0, 0.0
    gpus = 1
    while gpus <= WIDEST:
        tokens_per_second = tokens_a_gpu(shape, work, machine, gpus)
        if tokens_per_second > 0 and tokens_per_second >= WORTH * rate:
            chosen, rate = gpus, tokens_per_second
        elif chosen:
            break
        gpus *= 2
    if not chosen:
        raise UsageError(
            f"{shape.name} cannot be sampled: {WIDEST} GPUs of {machine.memory_gib:g} GiB do not hold its weights and one "
            f"rollout of {work.length:,} tokens."
        )
    return chosen


def tokens_a_gpu(shape: ModelShape, work: Work, machine: Machine, gpus: int) -> float:
    """Return the sampled tokens a second of each of a sampler's GPUs, with as many rollouts as fit; 0 where none does."""
    at_once = most_at_once(shape, work, machine, gpus)
    if not at_once:
        return 0.0
    drawing = turn_seconds(shape, work, machine, gpus=gpus, at_once=at_once)
    return at_once * work.sampled / (drawing + work.environment_seconds) / gpus


def most_at_once(shape: ModelShape, work: Work, machine: Machine, gpus: int) -> int:
    """Return how many whole rollouts a sampler's memory holds: room for keys and values / (length · bytes of a token)."""
    return max(0, int(kv_room(shape, machine, gpus) // (work.length * shape.bytes_per_token)))


def _share(shape: ModelShape, work: Work, machine: Machine, gpus: int, samplers: int) -> Sampling:
    """Return the duration of one sampler's share of a step's rollouts."""
    share = math.ceil(work.rollouts / samplers)
    at_once = min(most_at_once(shape, work, machine, gpus), share)
    return sampling(shape, work, machine, gpus=gpus, at_once=at_once, rollouts=share)


def _samplers_by_speed(
    shape: ModelShape, work: Work, machine: Machine, gpus: int, trained: float
) -> int:
    """Return the least number of samplers whose step is no longer than the trainer's, or that play all rollouts at once."""
    samplers = 1
    while True:
        step_sampling = _share(shape, work, machine, gpus, samplers)
        if step_sampling.seconds <= trained or step_sampling.rounds <= 1:
            return samplers
        samplers += 1


def _disturbed(step_sampling: Sampling, samplers_lost: float, environments_lost: float) -> float:
    """Return the duration of a step's sampling with preemption: each plane's part, over the share of its time that is left."""
    sampled = (step_sampling.decoding + step_sampling.prefill) / max(1 - samplers_lost, 1e-9)
    return sampled + step_sampling.environments / max(1 - environments_lost, 1e-9)
