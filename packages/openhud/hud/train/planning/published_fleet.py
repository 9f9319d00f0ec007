"""Comparison of plans with the table of fleets that guides publish: equal where it is, and reasons where it is not.

The table is of H200 GPUs; its token counts, batch sizes and precision of the optimizer are not stated, so a difference is explained
by what would have to hold for the published figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hud.engine.memory.model_shapes import GIB, SHAPES, Machine
from hud.engine.memory.trainer_memory import TRAININGS, bytes_a_parameter, trainer_gpus
from hud.train.planning.sizing import LEAST_SAMPLERS, CpuNode, Fleet, Plan
from hud.train.planning.speed import Work
from hud.train.planning.transfers import GIGA


@dataclass(frozen=True)
class Published:
    """A row of the published table."""

    trainer_gpus: int
    sampler_gpus: int
    gpus_per_sampler: int | None = None
    """Width of tensor parallelism; None: not stated."""


PUBLISHED_GPU = "H200"
PUBLISHED = {"7B": Published(1, 2), "32B": Published(4, 8, 4), "70B": Published(8, 16)}
ENVIRONMENTS_A_NODE = (128, 256)
CORES_A_NODE = (32, 64)
BROADCAST_SECONDS = 6.0
"""Published bound of a broadcast of 64 GB over 100 Gb/s."""
BROADCAST_SHARE = 0.04
"""Published bound of its share of time, every 25 steps."""
BROADCAST_EVERY = 25


def comparison(plans: Sequence[Plan], work: Work, fleet: Fleet) -> list[str]:
    """Return sentences that compare plans of one training with the published table."""
    sentences = [*_gpus(plans, work, fleet.machine), *_second_sampler(plans)]
    sentences += [_broadcast(plan) for plan in plans if plan.model == "32B"]
    return [*sentences, _environments(plans, fleet.node)]


def _gpus(plans: Sequence[Plan], work: Work, machine: Machine) -> list[str]:
    """Return a sentence for each model whose GPUs differ, or one for all."""
    sentences = []
    for plan in plans:
        published = PUBLISHED[plan.model]
        if plan.trainer_gpus != published.trainer_gpus:
            sentences.append(_trainer(plan, published, work, machine))
        if plan.sampler_gpus != published.sampler_gpus:
            sentences.append(_samplers(plan, published))
    if not sentences:
        sentences = [
            "GPUs to train and to sample are those of the published table: 1 and 2 (7B), 4 and 8, two samplers of 4-way tensor "
            "parallelism (32B), 8 and 16 (70B)."
        ]
    return sentences


def _trainer(plan: Plan, published: Published, work: Work, machine: Machine) -> str:
    shape = next(known_shape for known_shape in SHAPES if known_shape.name == plan.model)
    memory = plan.trainer
    states = (memory.total - memory.activations) / shape.parameters
    begun = (
        f"{plan.model} trains on {plan.trainer_gpus} GPUs, not {published.trainer_gpus}: with {states:.1f} bytes a parameter, "
        f"its states and activations are {memory.total / GIB:,.0f} GiB"
    )
    if plan.trainer_gpus < published.trainer_gpus:
        return f"{begun}. The published number would be faster."
    longest = work.length
    enough = [
        training
        for training in TRAININGS
        if trainer_gpus(shape, training, machine, longest=longest, rank=0) <= published.trainer_gpus
    ]
    most = bytes_a_parameter(shape, machine, gpus=published.trainer_gpus, longest=longest)
    room = published.trainer_gpus * machine.usable_bytes / GIB
    return (
        f"{begun}; usable on {published.trainer_gpus} are {room:,.0f}, enough for {max(0.0, most):.1f} bytes a parameter. "
        f"Trainings that fit: {', '.join(enough) or 'none'}."
    )


def _samplers(plan: Plan, published: Published) -> str:
    wide = plan.gpus_per_sampler
    stated = published.gpus_per_sampler
    begun = f"{plan.model} samples on {plan.sampler_gpus} GPUs, not {published.sampler_gpus}: "
    if stated is not None and wide != stated:
        return f"{begun}{wide} a sampler, not {stated}, is where doubling them no longer gives each GPU a fifth more tokens a second."
    faster = "as fast as the trainer" if plan.samplers == plan.samplers_by_speed else "the least"
    return f"{begun}{plan.samplers} samplers of {wide} are {faster} for the given rollouts."


def _second_sampler(plans: Sequence[Plan]) -> list[str]:
    spare = [plan.model for plan in plans if plan.samplers_by_speed < LEAST_SAMPLERS]
    if not spare:
        return []
    return [
        f"{', '.join(spare)}: one sampler would keep up with the trainer; the second one continues its turns when it is preempted."
    ]


def _broadcast(plan: Plan) -> str:
    """Return the comparison of a broadcast's duration and share with the published bounds."""
    seconds, share = plan.broadcast_seconds, plan.broadcast_share(BROADCAST_EVERY)
    within = seconds < BROADCAST_SECONDS and share < BROADCAST_SHARE
    from_seconds = seconds / (BROADCAST_SHARE * BROADCAST_EVERY)
    return (
        f"The weights of 32B, {plan.broadcast_bytes / GIGA:.3g} GB, reach the samplers in {seconds:.2g} s: {share:.2%} of 25 steps"
        f"{' (published:' if within else ', not as published ('} under 6 s, under 4%; that share is reached by steps of "
        f"{from_seconds:.2g} s)."
    )


def _environments(plans: Sequence[Plan], node: CpuNode) -> str:
    """Return the comparison of the environments of a node."""
    cores = node.cores
    counts = sorted({plan.environments_per_node for plan in plans})
    low, high = ENVIRONMENTS_A_NODE
    numbers = " to ".join(str(count) for count in sorted({counts[0], counts[-1]}))
    within = low <= counts[0] and counts[-1] <= high and CORES_A_NODE[0] <= cores <= CORES_A_NODE[1]
    published = f"{low} to {high} on {CORES_A_NODE[0]} to {CORES_A_NODE[1]} cores"
    begun = f"A node of {cores} cores carries {numbers} environments"
    if within:
        return f"{begun} (published: {published})."
    if counts[0] >= int(node.memory_gib / node.environment_gib):
        return f"{begun}, not {published}: each has {node.environment_gib:g} GiB of its memory."
    shares = [
        plan.sampling.environments / (plan.sampling.environments + plan.sampling.decoding)
        for plan in plans
    ]
    return f"{begun}, not {published}: each computes on a core for up to {max(shares):.0%} of its time."
