"""The table of `hud plan`: fleets of large models side by side, and how they compare with the published ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hud.cli.output import Column, header, row, wrapped
from hud.engine.memory.model_shapes import GIB, SHAPES
from hud.engine.memory.trainer_memory import TRAININGS, Training, trainer_gpus
from hud.train.planning.preemption import HOUR
from hud.train.planning.prices import Hour, Prices
from hud.train.planning.published_fleet import PUBLISHED_GPU, comparison
from hud.train.planning.sizing import Fleet, Plan, plan_for
from hud.train.planning.speed import Work

DAY_HOURS = 24
NAMES: dict[Training, str] = {
    "full": "all weights, fp32 moments",
    "8bit": "all weights, 8-bit moments",
    "offload": "all weights, states in host memory",
    "lora": "LoRA",
}
COLUMNS = (Column("", 40, right=False), *(Column(shape.name, 11) for shape in SHAPES))
Cell = Callable[[Plan], str]


def plans_of(work: Work, fleet: Fleet, training: Training) -> list[Plan]:
    """Return the plan of every model."""
    return [plan_for(shape, work, fleet, training) for shape in SHAPES]


def lines(
    plans: Sequence[Plan], work: Work, fleet: Fleet, gpu: str, prices: Prices
) -> Iterator[str]:
    """Yield the lines of the table and of the sentences under it."""
    yield header(COLUMNS)
    for name, cell in _rows(work.steps, fleet, prices, prices.gpus.get(gpu)):
        yield row(COLUMNS, [name, *map(cell, plans)])
    yield ""
    yield "GPUs to train"
    for training, gpus in trainings(work, fleet).items():
        yield row(COLUMNS, [f"  {NAMES[training]}", *map(str, gpus)])
    compared = comparison(plans, work, fleet)
    other = [] if gpu == PUBLISHED_GPU else [f"The published table is of {PUBLISHED_GPU} GPUs."]
    for paragraph in (*other, *compared, *_assumed(plans, work, fleet, gpu, prices)):
        yield ""
        yield from wrapped(paragraph, 0)


def trainings(work: Work, fleet: Fleet) -> dict[Training, list[int]]:
    """Return the trainer's GPUs of every model, by training."""
    return {
        training: [
            trainer_gpus(shape, training, fleet.machine, longest=work.length, rank=fleet.rank)
            for shape in SHAPES
        ]
        for training in TRAININGS
    }


def as_data(
    plans: Sequence[Plan], work: Work, fleet: Fleet, gpu: str, prices: Prices
) -> dict[str, Any]:
    """Return plans, their inputs and the comparison as plain data, with costs where the GPU has a price."""
    hour = prices.gpus.get(gpu)
    return {
        "gpu": gpu,
        "work": dataclasses.asdict(work),
        "fleet": dataclasses.asdict(fleet),
        "prices": prices.model_dump(mode="json"),
        "plans": [_data(plan, hour, prices.cpu_core) for plan in plans],
        "trainer_gpus": trainings(work, fleet),
        "comparison": comparison(plans, work, fleet),
    }


def _data(plan: Plan, gpu: Hour | None, core: Hour | None) -> dict[str, Any]:
    shown = {
        **dataclasses.asdict(plan),
        "sampler_gpus": plan.sampler_gpus,
        "bottleneck": plan.bottleneck,
        "step_seconds": plan.step_seconds,
        "preemption_share": plan.preemption_share,
        "broadcast_share": plan.broadcast_share(plan.every),
        "checkpoint_share": plan.checkpoint_share(plan.every),
        "run_seconds": plan.run_seconds,
    }
    if gpu is not None:
        shown["day_cost"] = DAY_HOURS * plan.hour_cost(gpu, core)
        shown["run_cost"] = plan.run_cost(gpu, core)
    return shown


def _rows(steps: int, fleet: Fleet, prices: Prices, gpu: Hour | None) -> Iterator[tuple[str, Cell]]:
    """Yield the rows: a name, and the cell of a plan."""
    yield "trainer, on demand: GPUs", lambda plan: f"{plan.trainer_gpus}"
    yield "  weights, GiB", lambda plan: _gib(plan.trainer.weights)
    yield "  gradients, GiB", lambda plan: _gib(plan.trainer.gradients)
    yield "  optimizer states, GiB", lambda plan: _gib(plan.trainer.optimizer)
    yield "  activations, GiB", lambda plan: _gib(plan.trainer.activations)
    yield "samplers, spot: GPUs", lambda plan: f"{plan.sampler_gpus}"
    yield "  samplers x GPUs of each", lambda plan: f"{plan.samplers} x {plan.gpus_per_sampler}"
    yield "  weights of one, GiB", lambda plan: _gib(plan.weights)
    yield "  keys and values of one, GiB", lambda plan: _gib(plan.kv_cache)
    yield "  rollouts at a time in one", lambda plan: f"{plan.at_once}"
    yield f"environments, spot: {fleet.node.cores}-core nodes", lambda plan: f"{plan.nodes}"
    yield "  environments at a time", lambda plan: f"{plan.environments:,}"
    yield "  of these on a full node", lambda plan: f"{plan.environments_per_node}"
    yield "a step: training, s", lambda plan: _seconds(plan.training_seconds)
    yield "a step: sampling, s", lambda plan: _seconds(plan.sampling.seconds)
    yield "bottleneck", lambda plan: plan.bottleneck
    yield (
        f"weights over {fleet.network_gbit:g} Gb/s, s",
        lambda plan: _seconds(plan.broadcast_seconds),
    )
    yield "  of every step", lambda plan: _share(plan.broadcast_share(1))
    yield f"  of every {fleet.every} steps", lambda plan: _share(plan.broadcast_share(fleet.every))
    yield (
        f"weights by a folder at {fleet.disk_gb:g} GB/s, s",
        lambda plan: _seconds(plan.folder_seconds),
    )
    yield f"checkpoint at {fleet.disk_gb:g} GB/s, s", lambda plan: _seconds(plan.checkpoint_seconds)
    yield "  of every step", lambda plan: _share(plan.checkpoint_share(1))
    yield f"  of every {fleet.every} steps", lambda plan: _share(plan.checkpoint_share(fleet.every))
    yield "preemption: samplers' time lost", lambda plan: _share(plan.samplers_lost)
    yield "  environments' time lost", lambda plan: _share(plan.environments_lost)
    yield "  the step is longer by", lambda plan: _share(plan.preemption_share)
    yield "  were the trainer on spot: its time lost", lambda plan: _share(plan.trainer_lost)
    yield f"run of {steps:,} steps, h", lambda plan: f"{plan.run_seconds / HOUR:,.1f}"
    if gpu is not None:
        core, unit = prices.cpu_core, prices.currency
        yield f"a day, {unit}", lambda plan: f"{DAY_HOURS * plan.hour_cost(gpu, core):,.0f}"
        yield f"the run, {unit}", lambda plan: f"{plan.run_cost(gpu, core):,.0f}"


def _assumed(
    plans: Sequence[Plan], work: Work, fleet: Fleet, gpu: str, prices: Prices
) -> Iterator[str]:
    """Yield the inputs of the arithmetic in words."""
    machine, event = fleet.machine, fleet.preemption
    yield (
        f"{work.steps:,} steps of {work.rollouts:,} rollouts: {work.turns} turns of {work.tokens_per_turn:,} sampled and "
        f"{work.observed_per_turn:,} observed tokens after a prompt of {work.prompt:,}, {work.environment_seconds_per_turn:g} s "
        f"of environment in each turn. {gpu}: {machine.memory_gib:g} GiB ({machine.usable:.0%} usable), {machine.bandwidth_tb:g} TB/s "
        f"({machine.decode_fraction:.0%} achieved), {machine.tflops:g} TFLOP/s ({machine.compute_fraction:.0%} achieved)."
    )
    yield (
        f"Preemptions an hour: {event.samplers_per_hour:g} of a sampler, {event.nodes_per_hour:g} of a node; away for "
        f"{event.sampler_away:g} and {event.node_away:g} s. Weights and checkpoints of the run: every {plans[0].every} steps; hud train "
        "writes and sends them at every step."
    )
    hour = prices.gpus.get(gpu)
    if hour is None:
        yield f"The prices ({prices.day()}) have no {gpu}: no cost. Others: --prices FILE."
        return
    cores = (
        "CPU nodes have no price in the file and are not in the cost"
        if prices.cpu_core is None
        else f"a core {prices.cpu_core.spot:g} on spot"
    )
    yield (
        f"Prices of {prices.day()}, {prices.currency} an hour: {gpu} {hour.on_demand:g} on demand, {hour.spot:g} on spot; {cores}. "
        "Others: --prices FILE. Formulas: hud.train.planning."
    )


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size < 10 * GIB else f"{size / GIB:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.1 else f"{value:.2%}"
